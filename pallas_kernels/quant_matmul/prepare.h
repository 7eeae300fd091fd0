// Activations as the tiles want them: interleaved, in float32 or rounded to int8 per block. See
// tiles.h about V.

#ifndef HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_PREPARE_H_
#define HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_PREPARE_H_

#include "pallas_kernels/quant_matmul/tiles.h"

namespace halogen {
namespace {

template <typename V>
struct Preparation {
  static void Prepare(const Activations& activations, const void* x, int type, int64_t tile) {
    const int count = activations.tile_tokens(tile);
    char* data = activations.data + tile * activations.tile_bytes;
    for (int t = 0; t < count; ++t) {
      const int64_t begin = (activations.first_token(tile) + t) * activations.columns;
      const char* row = static_cast<const char*>(x) + begin * (type == kF32 ? 4 : 2);
      if (type == kF32) PrepareRow<kF32>(activations, row, data, count, t);
      if (type == kBf16) PrepareRow<kBf16>(activations, row, data, count, t);
      if (type == kF16) PrepareRow<kF16>(activations, row, data, count, t);
    }
  }

  static constexpr int kChunk = 8;  // blocks that are prepared together
  static constexpr float kZeroBlock[kBlock] = {};

  // Row t of a tile of `count` tokens.
  template <int kType>
  static void PrepareRow(const Activations& activations, const char* row, char* data, int count,
                         int t) {
    constexpr int kBytes = kType == kF32 ? 4 : 2;
    const int64_t columns = activations.columns;
    for (int64_t first = 0; first < columns; first += kChunk * kBlock) {
      alignas(64) float converted[kChunk * kBlock];
      const int64_t width = Smaller(kChunk * kBlock, columns - first);
      const uint8_t* at = reinterpret_cast<const uint8_t*>(row) + first * kBytes;
      const float* chunk = converted;
      int64_t i = 0;
      if (kType == kF32 && width % kBlock == 0) {
        chunk = reinterpret_cast<const float*>(at);
      } else {
        for (; i + V::kLanes <= width; i += V::kLanes) {
          V::Store(converted + i, V::template LoadAs<kType>(at + i * kBytes));
        }
        for (; i < width; ++i) converted[i] = LoadOne<kType>(at + i * kBytes);
        for (; i % kBlock; ++i) converted[i] = 0;
      }
      if (activations.needs_values) {
        float* values = reinterpret_cast<float*>(data + activations.values_at);
        for (i = 0; i < width; ++i) values[(first + i) * count + t] = chunk[i];
      }
      if (activations.needs_codes) {
        PrepareCodes(activations, chunk, static_cast<int>(Ceil(width, kBlock)), data, count, t,
                     first / kBlock);
      }
    }
  }

  template <int kType>
  static float LoadOne(const uint8_t* at) {
    if (kType == kF32) {
      float value;
      std::memcpy(&value, at, 4);
      return value;
    }
    uint16_t half;
    std::memcpy(&half, at, 2);
    return kType == kBf16 ? Bf16ToFloat(half) : HalfToFloat(half);
  }

  // `blocks` blocks of a row, the first of them block `first`, as int8.
  static void PrepareCodes(const Activations& activations, const float* chunk, int blocks,
                           char* data, int count, int t, int64_t first) {
    const int parts = activations.parts;
    alignas(64) int8_t codes[2][kChunk * kBlock];
    int32_t sums[kChunk * 2], second_sums[2];  // of half blocks
    float* scale = reinterpret_cast<float*>(data + activations.scale_at) + first * count + t;
    float* sum = reinterpret_cast<float*>(data + activations.sum_at) + first * count + t;
    for (int b = 0; b < blocks; ++b) {
      // The magnitudes are compared as integers, so that a NaN is the largest of all and spoils the
      // scale.
      const float top = V::Largest(chunk + b * kBlock);
      scale[b * count] = top * (parts == 2 ? 1.0f / (127.0f * 256.0f) : 1.0f / 127.0f);
      // Blocks of next to nothing become zero: 127 / top would overflow. So do those with an
      // infinity or a NaN; their scale makes the result a NaN.
      const bool is_usual = top > 1e-30f && top < 3e38f;
      const float* numbers = is_usual ? chunk + b * kBlock : kZeroBlock;
      const float inverse = is_usual ? 127.0f / top : 0.0f;
      V::Round(numbers, inverse, codes[0] + b * kBlock, sums + b * 2);
      if (parts == 2) {
        V::RoundRest(numbers, inverse, codes[1] + b * kBlock, second_sums);
        for (int h = 0; h < 2; ++h) sums[b * 2 + h] = 256 * sums[b * 2 + h] + second_sums[h];
      }
      sum[b * count] = scale[b * count] * static_cast<float>(sums[b * 2] + sums[b * 2 + 1]);
    }
    char* quads = data + activations.codes_at + first * kBlock * count * parts + t * 4;
    for (int part = 0; part < parts; ++part) {
      for (int b = 0; b < blocks; ++b) {
        HALOGEN_UNROLL
        for (int j = 0; j < 8; ++j) {
          std::memcpy(quads + ((b * 8 + j) * parts + part) * count * 4,
                      codes[part] + (b * 8 + j) * 4, 4);
        }
      }
    }
    for (int i = 0; i < kNumZeros; ++i) {
      if (!activations.needs_zero[i]) continue;
      int32_t* start = reinterpret_cast<int32_t*>(data + activations.start_at[i]) + t;
      if (kZeros[i] == 32) {
        start += 2 * first * count;
        for (int h = 0; h < blocks * 2; ++h) start[h * count] = -32 * sums[h];
      } else {
        start += first * count;
        for (int b = 0; b < blocks; ++b) {
          start[b * count] = -kZeros[i] * (sums[b * 2] + sums[b * 2 + 1]);
        }
      }
    }
  }
};

}  // namespace
}  // namespace halogen

#endif  // HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_PREPARE_H_
