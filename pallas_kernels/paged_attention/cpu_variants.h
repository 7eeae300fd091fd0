// The attention kernel in every instruction set of this architecture, and the choice among them.
//
// One source is compiled several times under different targets, so that one library runs on every
// machine of the architecture. Results of one variant are the same everywhere; between variants
// they differ by rounding.

#ifndef HALOGEN_PALLAS_KERNELS_PAGED_ATTENTION_CPU_VARIANTS_H_
#define HALOGEN_PALLAS_KERNELS_PAGED_ATTENTION_CPU_VARIANTS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "pallas_kernels/paged_attention/cpu_step.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace halogen::paged_attention {

struct Variant {
  const char* name;
  int lanes;
  void (*write_tokens)(const Step& step, int64_t first, int64_t end);
  void (*attend_block)(const Step& step, const Block& block);
  void (*attend_tiles)(const Step& step, const Block& block, int64_t first, int64_t end,
                       float* parts);
  void (*fold_tiles)(const Step& step, const Block& block, float* parts);
};

inline float FromHalf(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16, size = half & 0x7fff;
  uint32_t bits = sign | ((size << 13) + (112u << 23));
  if (size >= 0x7c00) {  // infinity and NaN
    bits = sign | 0x7f800000 | (size << 13);
  } else if (size < 0x400) {  // zero and denormal: exact in float
    const float value = float(size) * 0x1p-24f;
    memcpy(&bits, &value, sizeof bits);
    bits |= sign;
  }
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// To nearest, ties to even.
inline uint16_t ToHalf(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return sign | 0x7e00 | (bits >> 13 & 0x3ff);
  if (bits >= 0x477ff000) return sign | 0x7c00;  // rounds past 65504
  if (bits < 0x38800000) {                       // below 2^-14: a multiple of 2^-24
    float size;
    memcpy(&size, &bits, sizeof size);
    size += 0.5f;  // the sum's last bit is 2^-24
    memcpy(&bits, &size, sizeof bits);
    return sign | uint16_t(bits - 0x3f000000);
  }
  bits += 0xfff + (bits >> 13 & 1);
  return sign | uint16_t((bits - (112u << 23)) >> 13);
}

#if defined(__x86_64__)

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")
namespace avx512 {
#define HALOGEN_ISA "AVX-512"
#define HALOGEN_LANES 16
#include "pallas_kernels/paged_attention/cpu_lanes.h"
#include "pallas_kernels/paged_attention/cpu_attend.h"
#undef HALOGEN_ISA
#undef HALOGEN_LANES
}  // namespace avx512
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace avx2 {
#define HALOGEN_ISA "AVX2"
#define HALOGEN_LANES 8
#include "pallas_kernels/paged_attention/cpu_lanes.h"
#include "pallas_kernels/paged_attention/cpu_attend.h"
#undef HALOGEN_ISA
#undef HALOGEN_LANES
}  // namespace avx2
#pragma GCC pop_options

#endif

namespace portable {
#define HALOGEN_ISA "portable"
#define HALOGEN_LANES 4
#include "pallas_kernels/paged_attention/cpu_lanes.h"
#include "pallas_kernels/paged_attention/cpu_attend.h"
#undef HALOGEN_ISA
#undef HALOGEN_LANES
}  // namespace portable

// The variants that run on this machine, the fastest first.
inline std::vector<Variant> RunnableVariants() {
  std::vector<Variant> found;
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    found.push_back(avx512::kVariant);
  }
  if (has_avx2) found.push_back(avx2::kVariant);
#endif
  found.push_back(portable::kVariant);
  return found;
}

}  // namespace halogen::paged_attention

#endif  // HALOGEN_PALLAS_KERNELS_PAGED_ATTENTION_CPU_VARIANTS_H_
