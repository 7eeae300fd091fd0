// How a packed matrix lies in memory; the twin of formats.py, which explains it.
//
// Rows are interleaved by 32. A group of 32 rows is a scale section and a code section, each padded
// to 64 bytes; a code section holds, for each block of 32 columns, 32 x 4 bytes per group of 4
// columns, so that a 32-bit lane is a row.

#ifndef HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_LAYOUT_H_
#define HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_LAYOUT_H_

#include <cstdint>
#include <cstring>

namespace halogen {

constexpr int64_t kRows = 32;         // interleaved
constexpr int64_t kBlock = 32;        // columns that share a scale of the activations
constexpr int64_t kSuperBlock = 256;  // columns of a K-quant's outer scale
constexpr int64_t kAlignment = 64;    // bytes
constexpr int64_t kQuad = kRows * 4;   // bytes of 4 columns, a byte per code

enum class Scales {
  kNone,         // codes are floating point numbers
  kChannel,      // float32 per row
  kHalf,         // float16 per block
  kHalfMinimum,  // float16 scale and minimum per block
  kSuperMinimum, // float16 scale and minimum per super-block, times uint8 per block
  kSuperHalf,    // float16 per super-block, times int8 per half block
};

struct Format {
  const char* name;
  int bits;  // of a code
  int zero;  // the code that stands for 0, when there is no minimum
  Scales scales;

  constexpr bool is_float() const { return scales == Scales::kNone; }
  constexpr bool has_minimum() const {
    return scales == Scales::kHalfMinimum || scales == Scales::kSuperMinimum;
  }
  constexpr bool is_half() const { return scales == Scales::kSuperHalf; }
};

// In the order of formats.py.
constexpr Format kFormats[] = {
    {"F32", 32, 0, Scales::kNone},        {"BF16", 16, 0, Scales::kNone},
    {"F16", 16, 0, Scales::kNone},        {"INT8", 8, 128, Scales::kChannel},
    {"Q8_0", 8, 128, Scales::kHalf},      {"Q4_0", 4, 8, Scales::kHalf},
    {"Q4_1", 4, 0, Scales::kHalfMinimum}, {"Q5_0", 5, 16, Scales::kHalf},
    {"Q5_1", 5, 0, Scales::kHalfMinimum}, {"Q4_K", 4, 0, Scales::kSuperMinimum},
    {"Q5_K", 5, 0, Scales::kSuperMinimum}, {"Q6_K", 6, 32, Scales::kSuperHalf},
};
constexpr int kF32 = 0, kBf16 = 1, kF16 = 2;  // places in kFormats, also names of x's types
constexpr int kNumFormats = sizeof(kFormats) / sizeof(kFormats[0]);

constexpr int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t Aligned(int64_t bytes) { return Ceil(bytes, kAlignment) * kAlignment; }

constexpr int64_t ScaleBytes(const Format& format, int64_t columns) {
  const int64_t blocks = Ceil(columns, kBlock), supers = Ceil(columns, kSuperBlock);
  switch (format.scales) {
    case Scales::kNone: return 0;
    case Scales::kChannel: return 4 * kRows;
    case Scales::kHalf: return Aligned(blocks * 2 * kRows);
    case Scales::kHalfMinimum: return Aligned(blocks * 4 * kRows);
    case Scales::kSuperMinimum: return Aligned(supers * 4 * kRows + blocks * 2 * kRows);
    case Scales::kSuperHalf: return Aligned(supers * 2 * kRows + blocks * 2 * kRows);
  }
  return 0;
}

constexpr int64_t CodeBytes(const Format& format, int64_t columns) {
  if (format.is_float()) return Aligned(columns * kRows * (format.bits / 8));
  return Ceil(columns, kBlock) * kBlock * kRows * format.bits / 8;
}

constexpr int64_t GroupBytes(const Format& format, int64_t columns) {
  return ScaleBytes(format, columns) + CodeBytes(format, columns);
}

// IEEE half precision, exactly; denormal halves are normal floats.
inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = (half >> 10) & 0x1f, fraction = half & 0x3ffu;
  uint32_t bits;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    std::memcpy(&bits, &magnitude, 4);
    bits |= sign;
  } else if (exponent == 31) {
    bits = sign | 0x7f800000u | (fraction << 13) | (fraction ? 0x400000u : 0);
  } else {
    bits = sign | ((exponent + 112) << 23) | (fraction << 13);
  }
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// To the nearest half, ties to even.
inline uint16_t FloatToHalf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint16_t sign = (bits >> 16) & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return sign | 0x7e00u;
  if (bits >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and above round to infinity
  if (bits < 0x38800000u) {                        // below 2^-14: a denormal half
    if (bits < 0x33000000u) return sign;           // at most 2^-25 rounds to zero
    const uint32_t shift = 126 - (bits >> 23);
    const uint32_t fraction = (bits & 0x7fffffu) | 0x800000u;
    const uint32_t kept = fraction >> shift, rest = fraction & ((1u << shift) - 1);
    const uint32_t middle = 1u << (shift - 1);
    return sign | static_cast<uint16_t>(kept + (rest > middle || (rest == middle && (kept & 1))));
  }
  bits += 0xfffu + ((bits >> 13) & 1);
  return sign | static_cast<uint16_t>((bits >> 13) - (112u << 10));
}

inline float Bf16ToFloat(uint16_t half) {
  const uint32_t bits = uint32_t{half} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// To the nearest, ties to even.
inline uint16_t FloatToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40u;
  return (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
}

}  // namespace halogen

#endif  // HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_LAYOUT_H_
