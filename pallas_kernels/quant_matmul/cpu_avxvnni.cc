// The multiplication with AVX-VNNI, the dot product instruction of processors without AVX-512.

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "pallas_kernels/quant_matmul/quant_matmul.h"

#define HALOGEN_TARGET "avx2,fma,f16c,avxvnni"
#include "pallas_kernels/target_begin.h"
//
#include "pallas_kernels/quant_matmul/avx2.h"
#include "pallas_kernels/quant_matmul/kernel.h"

namespace halogen {
namespace {

struct AvxVnni : Avx2Registers {
  static constexpr int kVectors = 2, kTile = 3, kTileOfTwo = 2, kPackedTiles = 1;

  template <int kBits>
  static constexpr int UnpackedBits() {
    return 8;  // the same instructions for every width
  }

  template <int kBits>
  struct Dot {
    struct Operand {
      C codes;
      void Set(C unsigned_codes) { codes = unsigned_codes; }
    };
    __m256i sum;

    void Start(const int32_t* start) {
      sum = start ? _mm256_set1_epi32(*start) : _mm256_setzero_si256();
    }
    void Add(const Operand& operand, C x, int) {
      sum = _mm256_dpbusd_avx_epi32(sum, operand.codes, x);
    }
    void Append(const Dot& other) {
      sum = _mm256_add_epi32(_mm256_slli_epi32(sum, 8), other.sum);
    }
    F Result() const { return _mm256_cvtepi32_ps(sum); }
  };
};

bool IsSupported() {
  // AVX-VNNI: CPUID leaf 7, subleaf 1, EAX bit 4. __builtin_cpu_supports knows it only in newer
  // compilers.
  unsigned a, b, c, d;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 16);
}

}  // namespace

extern const InstructionSet kAvxVnni = {"avxvnni", IsSupported,
                                        {AvxVnni::kTile, AvxVnni::kTile, AvxVnni::kTileOfTwo},
                                        Preparation<AvxVnni>::Prepare, Kernel<AvxVnni>::Multiply};

}  // namespace halogen

#include "pallas_kernels/target_end.h"

#endif  // __x86_64__
