// The multiplication for one instruction set V (see tiles.h): which function multiplies how many
// tokens with which format, and the walk over groups of rows and tiles of tokens.

#ifndef HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_KERNEL_H_
#define HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_KERNEL_H_

#include "pallas_kernels/quant_matmul/prepare.h"
#include "pallas_kernels/quant_matmul/tiles.h"
#include "pallas_kernels/quant_matmul/weights.h"

namespace halogen {
namespace {

template <typename V>
struct Kernel {
  using Own = Weights<V>;
  using IntegerFunction = void (*)(const uint8_t*, const float*, const float*, const Tile&, int64_t,
                                   const Ahead&, float*);
  using FloatFunction = void (*)(const uint8_t*, int64_t, const Tile&, int64_t, float*);

  static constexpr int kFewTokens = 2;  // sums of so few wait for each other, so more groups
  static constexpr int kGroupsAtOnce = 4 / V::kVectors;  // are multiplied at once
  static constexpr int64_t kAheadBytes = 4096;  // 2048 was 5 % slower at one token, none 25 %

  // Entry [n - 1] multiplies n tokens.
  struct IntegerTable {
    IntegerFunction packed[kMaxTile], unpacked[kMaxTile];
  };
  struct FloatTable {
    FloatFunction together[kFewTokens], alone[kMaxTile];
  };

  template <int kParts, int kBits, bool kHasMinimum, bool kIsHalf>
  static const IntegerTable& Integers() {
    static constexpr IntegerTable table = MakeIntegers<kParts, kBits, kHasMinimum, kIsHalf>();
    return table;
  }

  template <int kParts, int kBits, bool kHasMinimum, bool kIsHalf>
  static constexpr IntegerTable MakeIntegers() {
    constexpr int kTile = kParts == 2 ? V::kTileOfTwo : V::kTile;
    IntegerTable table{};
    FillIntegers<kParts, kBits, kHasMinimum, kIsHalf, true, kTile>(table.packed);
    FillIntegers<kParts, V::template UnpackedBits<kBits>(), kHasMinimum, kIsHalf, false, kTile>(
        table.unpacked);
    return table;
  }

  template <int kParts, int kBits, bool kHasMinimum, bool kIsHalf, bool kIsPacked, int kTokens>
  static constexpr void FillIntegers(IntegerFunction* table) {
    if constexpr (kTokens > 0) {
      table[kTokens - 1] = IntegerTile<V, kParts, kBits, kHasMinimum, kIsHalf, kIsPacked, kTokens>;
      FillIntegers<kParts, kBits, kHasMinimum, kIsHalf, kIsPacked, kTokens - 1>(table);
    }
  }

  template <int kParts>
  static const IntegerTable& IntegersOf(const Format& format) {
    if (format.is_half()) return Integers<kParts, 6, false, true>();
    if (format.has_minimum()) {
      return format.bits == 4 ? Integers<kParts, 4, true, false>()
                              : Integers<kParts, 5, true, false>();
    }
    if (format.bits == 4) return Integers<kParts, 4, false, false>();
    return format.bits == 5 ? Integers<kParts, 5, false, false>()
                            : Integers<kParts, 8, false, false>();
  }

  template <int kType, int kTokens>
  static constexpr void FillFloats(FloatTable& table) {
    if constexpr (kTokens > 0) {
      table.alone[kTokens - 1] = FloatTile<V, kType, 1, kTokens>;
      if constexpr (kTokens <= kFewTokens) {
        table.together[kTokens - 1] = FloatTile<V, kType, kGroupsAtOnce, kTokens>;
      }
      FillFloats<kType, kTokens - 1>(table);
    }
  }

  template <int kType>
  static constexpr FloatTable MakeFloats() {
    FloatTable table{};
    FillFloats<kType, V::kTile>(table);
    return table;
  }

  static const FloatTable& FloatsOf(int type) {
    static constexpr FloatTable tables[] = {MakeFloats<kF32>(), MakeFloats<kBf16>(),
                                            MakeFloats<kF16>()};
    return tables[type];
  }

  static Tile TileOf(const Activations& activations, int64_t tile, const Format& format) {
    const char* data = activations.data + tile * activations.tile_bytes;
    const int zero = ZeroIndex(format.zero);
    return {reinterpret_cast<const float*>(data + activations.values_at),
            reinterpret_cast<const int8_t*>(data + activations.codes_at),
            reinterpret_cast<const float*>(data + activations.scale_at),
            reinterpret_cast<const float*>(data + activations.sum_at),
            zero < 0 ? nullptr
                     : reinterpret_cast<const int32_t*>(data + activations.start_at[zero])};
  }

  static void Multiply(const Product& product, const Activations& activations, int64_t group_begin,
                       int64_t group_end, int64_t tile_begin, int64_t tile_end,
                       const Scratch& scratch) {
    const Format& format = kFormats[product.format];
    const int64_t columns = activations.columns, blocks = activations.blocks();
    const int64_t group_bytes = GroupBytes(format, columns);
    alignas(64) float out[kGroupsAtOnce * kMaxTile * kRows];
    for (int64_t g = group_begin; g < group_end;) {
      const uint8_t* group = product.packed + (g - product.first_group) * group_bytes;
      const uint8_t* codes = group + ScaleBytes(format, columns);
      const int first_count = activations.tile_tokens(tile_begin);
      const bool is_single = tile_end - tile_begin == 1;
      if (format.is_float()) {
        const bool is_together =
            is_single && first_count <= kFewTokens && group_end - g >= kGroupsAtOnce;
        for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
          const int count = activations.tile_tokens(tile);
          const FloatTable& table = FloatsOf(product.format);
          (is_together ? table.together : table.alone)[count - 1](
              codes, group_bytes, TileOf(activations, tile, format), columns, out);
          for (int i = 0; i < (is_together ? kGroupsAtOnce : 1); ++i) {
            WriteOut(product, out + i * count * kRows, g + i, activations.first_token(tile), count);
          }
        }
        g += is_together ? kGroupsAtOnce : 1;
        continue;
      }
      Own::ExpandScales(format, group, columns, scratch.scale, scratch.minimum);
      const bool is_exact = activations.parts == 0;
      const bool is_packed = tile_end - tile_begin <= V::kPackedTiles && !is_exact;
      if (!is_packed) codes = Own::Codes(format, codes, blocks, scratch.codes);
      if (is_exact) {
        Own::Dequantize(format, codes, scratch.scale, scratch.minimum, columns, scratch.values);
      }
      for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        const int count = activations.tile_tokens(tile);
        const Tile x = TileOf(activations, tile, format);
        if (is_exact) {
          FloatsOf(kF32).alone[count - 1](reinterpret_cast<const uint8_t*>(scratch.values), 0, x,
                                          columns, out);
        } else {
          const IntegerTable& table =
              activations.parts == 2 ? IntegersOf<2>(format) : IntegersOf<1>(format);
          // One token passes through memory as fast as it can; with more there is time to fetch
          // the whole next group.
          const Ahead ahead = {group + (is_packed ? kAheadBytes : group_bytes),
                               tile == tile_begin ? Aligned(Ceil(group_bytes, blocks)) : 0};
          (is_packed ? table.packed : table.unpacked)[count - 1](
              codes, scratch.scale, scratch.minimum, x, blocks, ahead, out);
        }
        WriteOut(product, out, g, activations.first_token(tile), count);
      }
      ++g;
    }
  }

  // Sums [count][32] of one group into the result's rows first, first + 1, ...
  static void WriteOut(const Product& product, const float* sums, int64_t group, int64_t first,
                       int count) {
    const int64_t begin = group * kRows;
    const int width = static_cast<int>(Smaller(kRows, product.rows - begin));
    for (int t = 0; t < count; ++t) {
      const float* from = sums + t * kRows;
      const int64_t at = (first + t) * product.rows + begin;
      if (product.out_type == kF32) {
        float* to = static_cast<float*>(product.out) + at;
        if (width == kRows) {
          for (int i = 0; i < kRows; i += V::kLanes) V::Store(to + i, V::Load(from + i));
        } else {
          std::memcpy(to, from, width * 4);
        }
        continue;
      }
      uint16_t* to = static_cast<uint16_t*>(product.out) + at;
      for (int i = 0; i < width; ++i) {
        to[i] = product.out_type == kBf16 ? FloatToBf16(from[i]) : FloatToHalf(from[i]);
      }
    }
  }
};

}  // namespace
}  // namespace halogen

#endif  // HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_KERNEL_H_
