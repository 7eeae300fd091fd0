// float16 without an instruction for it.

#ifndef HALOGEN_PALLAS_KERNELS_PAGED_ATTENTION_CPU_HALF_H_
#define HALOGEN_PALLAS_KERNELS_PAGED_ATTENTION_CPU_HALF_H_

#include <cstdint>
#include <cstring>

namespace halogen::paged_attention {

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

}  // namespace halogen::paged_attention

#endif  // HALOGEN_PALLAS_KERNELS_PAGED_ATTENTION_CPU_HALF_H_
