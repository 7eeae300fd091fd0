// The multiplication with AVX-512 VNNI: 16 rows to a register, 64 products of bytes an instruction.

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "pallas_kernels/quant_matmul/quant_matmul.h"

#define HALOGEN_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"
#include "pallas_kernels/target_begin.h"
//
#include "pallas_kernels/quant_matmul/kernel.h"

namespace halogen {
namespace {

struct Avx512 {
  static constexpr int kLanes = 16, kVectors = 2, kTile = 8, kTileOfTwo = 4, kPackedTiles = 2;
  using F = __m512;
  using C = __m512i;

  template <int kBits>
  static constexpr int UnpackedBits() {
    return 8;  // the same instructions for every width
  }

  static F Zero() { return _mm512_setzero_ps(); }
  static F Load(const float* at) { return _mm512_loadu_ps(at); }
  static void Store(float* at, F a) { _mm512_storeu_ps(at, a); }
  static F Broadcast(const float* at) { return _mm512_set1_ps(*at); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  template <int kType>
  static F LoadAs(const uint8_t* at) {
    if (kType == kF32) return _mm512_loadu_ps(at);
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    if (kType == kF16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  static F FromUnsigned(const uint8_t* at) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
  }
  static F FromSigned(const uint8_t* at) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
  }

  static C LoadCodes(const uint8_t* at) { return _mm512_loadu_si512(at); }
  static C BroadcastCodes(const int8_t* at) {
    int32_t four;
    std::memcpy(&four, at, 4);
    return _mm512_set1_epi32(four);
  }
  static void StoreCodes(uint8_t* at, C a) { _mm512_storeu_si512(at, a); }
  static C And(C a, int mask) { return _mm512_and_si512(a, _mm512_set1_epi8(mask)); }
  static C Or(C a, C b) { return _mm512_or_si512(a, b); }
  static C Left(C a, int count) { return _mm512_slli_epi16(a, count); }
  static C Right(C a, int count) { return _mm512_srli_epi16(a, count); }

  template <int kBits>
  struct Dot {
    struct Operand {
      C codes;
      void Set(C unsigned_codes) { codes = unsigned_codes; }
    };
    __m512i sum;

    void Start(const int32_t* start) {
      sum = start ? _mm512_set1_epi32(*start) : _mm512_setzero_si512();
    }
    void Add(const Operand& operand, C x, int) {
      sum = _mm512_dpbusd_epi32(sum, operand.codes, x);
    }
    void Append(const Dot& other) {
      sum = _mm512_add_epi32(_mm512_slli_epi32(sum, 8), other.sum);
    }
    F Result() const { return _mm512_cvtepi32_ps(sum); }
  };

  static float Largest(const float* block) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512i largest =
        _mm512_max_epi32(_mm512_and_si512(_mm512_loadu_si512(block), magnitude),
                         _mm512_and_si512(_mm512_loadu_si512(block + 16), magnitude));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_set1_epi32(_mm512_reduce_max_epi32(largest))));
  }
  static void Round(const float* block, float inverse, int8_t* codes, int32_t* sums) {
    const F factor = _mm512_set1_ps(inverse);
    for (int i = 0; i < 2; ++i) {
      const F number = _mm512_mul_ps(_mm512_loadu_ps(block + i * 16), factor);
      sums[i] = Narrow(_mm512_cvtps_epi32(number), codes + i * 16);
    }
  }

  // The same of 256 times what Round leaves over; at most 127 of either sign, since a sign may be
  // moved from a weight to a code.
  static void RoundRest(const float* block, float inverse, int8_t* codes, int32_t* sums) {
    const F factor = _mm512_set1_ps(inverse);
    for (int i = 0; i < 2; ++i) {
      const F number = _mm512_mul_ps(_mm512_loadu_ps(block + i * 16), factor);
      const F first = _mm512_cvtepi32_ps(_mm512_cvtps_epi32(number));
      const F rest = _mm512_mul_ps(_mm512_sub_ps(number, first), _mm512_set1_ps(256));
      const __m512i rounded =
          _mm512_max_epi32(_mm512_cvtps_epi32(rest), _mm512_set1_epi32(-127));
      sums[i] = Narrow(_mm512_min_epi32(rounded, _mm512_set1_epi32(127)), codes + i * 16);
    }
  }

  // Half a block of codes as bytes; returns their sum.
  static int32_t Narrow(__m512i rounded, int8_t* codes) {
    const __m128i bytes = _mm512_cvtepi32_epi8(rounded);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), bytes);
    // Four sums of four, then one.
    const __m128i four = _mm_dpbusd_epi32(_mm_setzero_si128(), _mm_set1_epi8(1), bytes);
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
  }
};

bool IsSupported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

}  // namespace

extern const InstructionSet kAvx512 = {"avx512", IsSupported,
                                       {Avx512::kTile, Avx512::kTile, Avx512::kTileOfTwo},
                                       Preparation<Avx512>::Prepare, Kernel<Avx512>::Multiply};

}  // namespace halogen

#include "pallas_kernels/target_end.h"

#endif  // __x86_64__
