// The multiplication with AVX2, FMA and F16C: 8 rows to a register.
//
// maddubs adds two products of bytes in int16. With weights of 4 bits eight such sums fit into
// int16 before they must be widened (8 x 2 x 15 x 127 = 30480), of 5 bits four, of 6 bits two; 8
// bits need the signs moved to the activations, because 2 x 255 x 127 does not fit.

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "pallas_kernels/quant_matmul/quant_matmul.h"

#define HALOGEN_TARGET "avx2,fma,f16c"
#include "pallas_kernels/target_begin.h"
//
#include "pallas_kernels/quant_matmul/avx2.h"
#include "pallas_kernels/quant_matmul/kernel.h"

namespace halogen {
namespace {

struct Avx2 : Avx2Registers {
  static constexpr int kVectors = 2, kTile = 3, kTileOfTwo = 2, kPackedTiles = 1;

  template <int kBits>
  static constexpr int UnpackedBits() {
    return kBits;
  }

  template <int kBits>
  struct Dot {
    // Steps whose int16 sums fit.
    static constexpr int kSteps = kBits == 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : 1;

    struct Operand {
      C codes, signs;
      void Set(C unsigned_codes) {
        codes = unsigned_codes;
        if (kBits == 8) {
          signs = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
          codes = _mm256_abs_epi8(signs);
        }
      }
    };
    __m256i sum, pairs;

    // A product of 8 bits subtracts the zero from the codes, so it starts from nothing.
    void Start(const int32_t* start) {
      sum = start && kBits != 8 ? _mm256_set1_epi32(*start) : _mm256_setzero_si256();
    }
    void Add(const Operand& operand, C x, int step) {
      const C four = kBits == 8 ? _mm256_sign_epi8(x, operand.signs) : x;
      const __m256i products = _mm256_maddubs_epi16(operand.codes, four);
      pairs = step % kSteps == 0 ? products : _mm256_add_epi16(pairs, products);
      if (step % kSteps == kSteps - 1) {
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
      }
    }
    void Append(const Dot& other) {
      sum = _mm256_add_epi32(_mm256_slli_epi32(sum, 8), other.sum);
    }
    F Result() const { return _mm256_cvtepi32_ps(sum); }
  };
};

bool IsSupported() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

}  // namespace

extern const InstructionSet kAvx2 = {"avx2", IsSupported,
                                     {Avx2::kTile, Avx2::kTile, Avx2::kTileOfTwo},
                                     Preparation<Avx2>::Prepare, Kernel<Avx2>::Multiply};

}  // namespace halogen

#include "pallas_kernels/target_end.h"

#endif  // __x86_64__
