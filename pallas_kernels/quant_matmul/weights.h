// A packed group of rows, unpacked: its scales, its codes, its numbers. See tiles.h about V.

#ifndef HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_WEIGHTS_H_
#define HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_WEIGHTS_H_

#include "pallas_kernels/quant_matmul/tiles.h"

namespace halogen {
namespace {

template <typename V>
struct Weights {
  using F = typename V::F;

  // Scales and minima of a group as float32, [blocks or half blocks][32] and [blocks][32].
  static void ExpandScales(const Format& format, const uint8_t* group, int64_t columns,
                           float* scale, float* minimum) {
    const int64_t blocks = Ceil(columns, kBlock), supers = Ceil(columns, kSuperBlock);
    const uint8_t* fine = nullptr;
    switch (format.scales) {
      case Scales::kNone:
        return;
      case Scales::kChannel:
        for (int64_t b = 0; b < blocks; ++b) std::memcpy(scale + b * kRows, group, 4 * kRows);
        return;
      case Scales::kHalf:
        for (int64_t i = 0; i < blocks * kRows; i += V::kLanes) {
          V::Store(scale + i, V::template LoadAs<kF16>(group + i * 2));
        }
        return;
      case Scales::kHalfMinimum:
        for (int64_t b = 0; b < blocks; ++b) {
          for (int lane = 0; lane < kRows; lane += V::kLanes) {
            const uint8_t* at = group + (b * 2 * kRows + lane) * 2;
            V::Store(scale + b * kRows + lane, V::template LoadAs<kF16>(at));
            V::Store(minimum + b * kRows + lane, V::template LoadAs<kF16>(at + kRows * 2));
          }
        }
        return;
      case Scales::kSuperMinimum:
        fine = group + supers * 4 * kRows;
        for (int64_t b = 0; b < blocks; ++b) {
          for (int lane = 0; lane < kRows; lane += V::kLanes) {
            const uint8_t* at = group + (b / 8 * 2 * kRows + lane) * 2;
            const F outer = V::template LoadAs<kF16>(at);
            const F low = V::template LoadAs<kF16>(at + kRows * 2);
            const uint8_t* inner = fine + b * 2 * kRows + lane;
            V::Store(scale + b * kRows + lane, V::Mul(outer, V::FromUnsigned(inner)));
            V::Store(minimum + b * kRows + lane,
                     V::Sub(V::Zero(), V::Mul(low, V::FromUnsigned(inner + kRows))));
          }
        }
        return;
      case Scales::kSuperHalf:
        fine = group + supers * 2 * kRows;
        for (int64_t b = 0; b < blocks * 2; ++b) {
          for (int lane = 0; lane < kRows; lane += V::kLanes) {
            const F outer = V::template LoadAs<kF16>(group + (b / 16 * kRows + lane) * 2);
            V::Store(scale + b * kRows + lane,
                     V::Mul(outer, V::FromSigned(fine + b * kRows + lane)));
          }
        }
        return;
    }
  }

  template <int kBits>
  static void UnpackAll(const uint8_t* packed, int64_t blocks, uint8_t* codes) {
    for (int64_t b = 0; b < blocks; ++b) {
      for (int lane = 0; lane < kRows; lane += V::kLanes) {
        HALOGEN_UNROLL
        for (int j = 0; j < 8; ++j) {
          V::StoreCodes(codes + (b * 8 + j) * kQuad + lane * 4,
                        Unpack<V, kBits>(packed + b * kQuad * kBits, lane, j));
        }
      }
    }
  }

  // The codes of a group, a byte each: where they lie already, or in `scratch`.
  static const uint8_t* Codes(const Format& format, const uint8_t* packed, int64_t blocks,
                              uint8_t* scratch) {
    if (format.bits == 8) return packed;
    if (format.bits == 4) UnpackAll<4>(packed, blocks, scratch);
    if (format.bits == 5) UnpackAll<5>(packed, blocks, scratch);
    if (format.bits == 6) UnpackAll<6>(packed, blocks, scratch);
    return scratch;
  }

  // Weights of a group as float32 [K][32].
  static void Dequantize(const Format& format, const uint8_t* codes, const float* scale,
                         const float* minimum, int64_t columns, float* values) {
    const int shift = format.is_half() ? 4 : 5;
    for (int64_t k = 0; k < columns; ++k) {
      const uint8_t* at = codes + k / 4 * kQuad + k % 4;
      for (int r = 0; r < kRows; ++r) {
        const float code = static_cast<float>(at[r * 4] - format.zero);
        const float product = scale[(k >> shift) * kRows + r] * code;
        values[k * kRows + r] =
            format.has_minimum() ? product + minimum[k / kBlock * kRows + r] : product;
      }
    }
  }
};

}  // namespace
}  // namespace halogen

#endif  // HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_WEIGHTS_H_
