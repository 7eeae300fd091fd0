// The plainest loops for reading memory and for multiplying in registers, in the widest
// instructions of this machine. Measuring is the caller's business.

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace halogen::limits {
namespace {

// Eight words at a time, so that the compiler has no chain to wait for.
uint64_t ReadPlain(const uint64_t* at, int64_t words) {
  uint64_t sums[8] = {};
  for (int64_t i = 0; i + 8 <= words; i += 8) {
    for (int j = 0; j < 8; ++j) sums[j] ^= at[i + j];
  }
  uint64_t all = 0;
  for (uint64_t sum : sums) all ^= sum;
  return all;
}

int64_t MultiplyPlain(int64_t rounds) {
  float sums[16] = {}, factor = 0.5f;
  asm volatile("" : "+m"(factor), "+m"(sums));
  for (int64_t i = 0; i < rounds; ++i) {
    for (float& sum : sums) sum = sum * factor + factor;
  }
  asm volatile("" : : "m"(sums));
  return rounds * 16;
}

#if defined(__x86_64__)

constexpr int kChains = 12;  // hide the latency of five cycles on two ports

#define HALOGEN_FOR_CHAINS _Pragma("GCC unroll 12") for (int i = 0; i < kChains; ++i)
// Hides from the compiler that all sums begin equal: it would keep one chain for all of them.
#define HALOGEN_BEGIN_CHAINS(kind) HALOGEN_FOR_CHAINS asm volatile("" : "+" kind(sums[i]))

__attribute__((target("avx512f"))) uint64_t Read512(const uint64_t* at, int64_t words) {
  __m512i sums[4] = {};
  for (int64_t i = 0; i + 32 <= words; i += 32) {
    for (int j = 0; j < 4; ++j) {
      sums[j] = _mm512_xor_si512(sums[j], _mm512_loadu_si512(at + i + j * 8));
    }
  }
  return _mm512_reduce_add_epi64(
      _mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3])));
}

__attribute__((target("avx512f,avx512vnni"))) int64_t MultiplyBytes512(int64_t rounds) {
  __m512i sums[kChains] = {}, codes = _mm512_set1_epi32(0x01020304);
  HALOGEN_BEGIN_CHAINS("v");
  for (int64_t round = 0; round < rounds; ++round) {
    asm volatile("" : "+v"(codes));
    HALOGEN_FOR_CHAINS sums[i] = _mm512_dpbusd_epi32(sums[i], codes, codes);
  }
  HALOGEN_FOR_CHAINS asm volatile("" : : "v"(sums[i]));
  return rounds * kChains * 64;
}

__attribute__((target("avx512f"))) int64_t MultiplyFloats512(int64_t rounds) {
  __m512 sums[kChains] = {}, factor = _mm512_set1_ps(0.5f);
  HALOGEN_BEGIN_CHAINS("v");
  for (int64_t round = 0; round < rounds; ++round) {
    asm volatile("" : "+v"(factor));
    HALOGEN_FOR_CHAINS sums[i] = _mm512_fmadd_ps(sums[i], factor, factor);
  }
  HALOGEN_FOR_CHAINS asm volatile("" : : "v"(sums[i]));
  return rounds * kChains * 16;
}

// Two instructions for 32 products; 16-bit sums are not counted on.
__attribute__((target("avx2"))) int64_t MultiplyBytes256(int64_t rounds) {
  __m256i sums[kChains] = {}, codes = _mm256_set1_epi32(0x01020304);
  HALOGEN_BEGIN_CHAINS("x");
  for (int64_t round = 0; round < rounds; ++round) {
    asm volatile("" : "+x"(codes));
    HALOGEN_FOR_CHAINS {
      const __m256i pairs = _mm256_maddubs_epi16(codes, codes);
      sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs, codes));
    }
  }
  HALOGEN_FOR_CHAINS asm volatile("" : : "x"(sums[i]));
  return rounds * kChains * 32;
}

__attribute__((target("avx2,fma"))) int64_t MultiplyFloats256(int64_t rounds) {
  __m256 sums[kChains] = {}, factor = _mm256_set1_ps(0.5f);
  HALOGEN_BEGIN_CHAINS("x");
  for (int64_t round = 0; round < rounds; ++round) {
    asm volatile("" : "+x"(factor));
    HALOGEN_FOR_CHAINS sums[i] = _mm256_fmadd_ps(sums[i], factor, factor);
  }
  HALOGEN_FOR_CHAINS asm volatile("" : : "x"(sums[i]));
  return rounds * kChains * 8;
}

#endif  // __x86_64__

}  // namespace

#define HALOGEN_EXPORT extern "C" __attribute__((visibility("default")))

// Reads `bytes` bytes, a multiple of 256; the result keeps the compiler from leaving them out.
HALOGEN_EXPORT uint64_t HalogenReadBytes(const void* at, int64_t bytes) {
  const auto* words = static_cast<const uint64_t*>(at);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return Read512(words, bytes / 8);
#endif
  return ReadPlain(words, bytes / 8);
}

// Multiply-adds in registers: kind 0 of bytes, 1 of floats. Returns how many it has done.
HALOGEN_EXPORT int64_t HalogenMultiplyAdds([[maybe_unused]] int kind, int64_t rounds) {
#if defined(__x86_64__)
  if (kind == 0 && __builtin_cpu_supports("avx512vnni")) return MultiplyBytes512(rounds);
  if (kind == 1 && __builtin_cpu_supports("avx512f")) return MultiplyFloats512(rounds);
  if (kind == 0 && __builtin_cpu_supports("avx2")) return MultiplyBytes256(rounds);
  if (kind == 1 && __builtin_cpu_supports("fma")) return MultiplyFloats256(rounds);
#endif
  return MultiplyPlain(rounds);
}

}  // namespace halogen::limits
