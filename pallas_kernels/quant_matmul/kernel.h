// The multiplication for one instruction set V, which a translation unit defines before it includes
// this file: V::F are V::kLanes floats, V::C as many groups of 4 codes, V::Dot<bits> adds up the
// products of codes. Everything here is local to the translation unit, and no function template of
// the standard library is used, because it is compiled for that unit's instruction set: a copy that
// the linker shares with other units would fail on lesser machines.

#include "pallas_kernels/quant_matmul/quant_matmul.h"

#if defined(HALOGEN_UNROLL)
#elif defined(__clang__)
#define HALOGEN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define HALOGEN_UNROLL _Pragma("GCC unroll 16")
#endif

namespace halogen {
namespace {

inline int64_t Smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// The codes of column group j (4 columns) of a packed block, one byte each.
template <typename V, int kBits>
inline typename V::C Unpack(const uint8_t* block, int lane, int j) {
  const uint8_t* at = block + lane * 4;
  if (kBits == 8) return V::LoadCodes(at + j * kQuad);
  const typename V::C pair = V::LoadCodes(at + (j & 3) * kQuad);
  const typename V::C low = V::And(j < 4 ? pair : V::Right(pair, 4), 0x0f);
  if (kBits == 5) {
    const typename V::C plane = V::LoadCodes(at + 4 * kQuad);
    return V::Or(low, V::And(j < 4 ? V::Left(plane, 4 - j) : V::Right(plane, j - 4), 0x10));
  }
  if (kBits == 6) {
    const typename V::C plane = V::LoadCodes(at + (4 + (j >> 2)) * kQuad);
    const int field = 2 * (j & 3);
    return V::Or(low, V::And(field < 4 ? V::Left(plane, 4 - field) : V::Right(plane, field - 4),
                             0x30));
  }
  return low;
}

// Packed bytes that will be needed soon: at each block the next `step` of them are fetched into the
// cache. The hardware's prefetcher stops at pages and starts anew at each of the small matrices.
struct Ahead {
  const uint8_t* at;
  int64_t step;

  void Fetch(int64_t block) const {
    for (int64_t i = 0; i < step; i += 64) __builtin_prefetch(at + block * step + i);
  }
};

// 32 rows times kTokens tokens, integer dot products. codes: packed blocks, or a byte per code.
// out [kTokens][32].
template <typename V, int kBits, bool kHasMinimum, bool kIsHalf, bool kIsPacked, int kTokens>
void IntegerTile(const uint8_t* codes, const float* scale, const float* minimum, const Tile& x,
                 int64_t blocks, const Ahead& ahead, float* out) {
  using F = typename V::F;
  using Dot = typename V::template Dot<kBits>;
  constexpr int kBlockBytes = kQuad * (kIsPacked ? kBits : 8);
  constexpr int kParts = kIsHalf ? 2 : 1, kSteps = 8 / kParts;
  constexpr int kVectors = V::kVectors;  // of rows, at once
  for (int first = 0; first < kRows; first += V::kLanes * kVectors) {
    F sum[kTokens][kVectors];
    HALOGEN_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      HALOGEN_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[t][v] = V::Zero();
    }
    for (int64_t b = 0; b < blocks; ++b) {
      const uint8_t* block = codes + b * kBlockBytes;
      const int8_t* columns = x.codes + b * kBlock * kTokens;
      if (first == 0) ahead.Fetch(b);
      if (kHasMinimum) {
        F low[kVectors];
        HALOGEN_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          low[v] = V::Load(minimum + b * kRows + first + v * V::kLanes);
        }
        HALOGEN_UNROLL
        for (int t = 0; t < kTokens; ++t) {
          const F total = V::Broadcast(x.sum + b * kTokens + t);
          HALOGEN_UNROLL
          for (int v = 0; v < kVectors; ++v) sum[t][v] = V::Fma(low[v], total, sum[t][v]);
        }
      }
      HALOGEN_UNROLL
      for (int part = 0; part < kParts; ++part) {
        Dot dot[kTokens][kVectors];
        HALOGEN_UNROLL
        for (int t = 0; t < kTokens; ++t) {
          HALOGEN_UNROLL
          for (int v = 0; v < kVectors; ++v) {
            dot[t][v].Start(kHasMinimum ? nullptr : x.start + (b * kParts + part) * kTokens + t);
          }
        }
        HALOGEN_UNROLL
        for (int step = 0; step < kSteps; ++step) {
          const int j = part * kSteps + step;
          typename Dot::Operand operand[kVectors];
          HALOGEN_UNROLL
          for (int v = 0; v < kVectors; ++v) {
            const int lane = first + v * V::kLanes;
            operand[v].Set(kIsPacked ? Unpack<V, kBits>(block, lane, j)
                                     : V::LoadCodes(block + j * kQuad + lane * 4));
          }
          HALOGEN_UNROLL
          for (int t = 0; t < kTokens; ++t) {
            const typename V::C four = V::BroadcastCodes(columns + (j * kTokens + t) * 4);
            HALOGEN_UNROLL
            for (int v = 0; v < kVectors; ++v) dot[t][v].Add(operand[v], four, step);
          }
        }
        F factor[kVectors];
        HALOGEN_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          factor[v] = V::Load(scale + (b * kParts + part) * kRows + first + v * V::kLanes);
        }
        HALOGEN_UNROLL
        for (int t = 0; t < kTokens; ++t) {
          const F own = V::Broadcast(x.scale + b * kTokens + t);
          HALOGEN_UNROLL
          for (int v = 0; v < kVectors; ++v) {
            sum[t][v] = V::Fma(V::Mul(factor[v], own), dot[t][v].Result(), sum[t][v]);
          }
        }
      }
    }
    HALOGEN_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      HALOGEN_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        V::Store(out + t * kRows + first + v * V::kLanes, sum[t][v]);
      }
    }
  }
}

// kGroups groups of 32 rows times kTokens tokens in float32. weights [kGroups][K][32] of kType, the
// groups group_bytes apart. out [kGroups][kTokens][32].
template <typename V, int kType, int kGroups, int kTokens>
void FloatTile(const uint8_t* weights, int64_t group_bytes, const Tile& x, int64_t columns,
               float* out) {
  using F = typename V::F;
  constexpr int kBytes = kType == kF32 ? 4 : 2;
  constexpr int kVectors = V::kVectors;
  for (int first = 0; first < kRows; first += V::kLanes * kVectors) {
    F sum[kGroups][kTokens][kVectors];
    HALOGEN_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      HALOGEN_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        HALOGEN_UNROLL
        for (int v = 0; v < kVectors; ++v) sum[g][t][v] = V::Zero();
      }
    }
    const uint8_t* at = weights + first * kBytes;
    for (int64_t k = 0; k < columns; ++k, at += kRows * kBytes) {
      HALOGEN_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        F weight[kVectors];
        HALOGEN_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          weight[v] = V::template LoadAs<kType>(at + g * group_bytes + v * V::kLanes * kBytes);
        }
        HALOGEN_UNROLL
        for (int t = 0; t < kTokens; ++t) {
          const F value = V::Broadcast(x.values + k * kTokens + t);
          HALOGEN_UNROLL
          for (int v = 0; v < kVectors; ++v) {
            sum[g][t][v] = V::Fma(weight[v], value, sum[g][t][v]);
          }
        }
      }
    }
    HALOGEN_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      HALOGEN_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        HALOGEN_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          V::Store(out + (g * kTokens + t) * kRows + first + v * V::kLanes, sum[g][t][v]);
        }
      }
    }
  }
}

template <typename V>
struct Kernel {
  using F = typename V::F;
  using IntegerFunction = void (*)(const uint8_t*, const float*, const float*, const Tile&, int64_t,
                                   const Ahead&, float*);
  using FloatFunction = void (*)(const uint8_t*, int64_t, const Tile&, int64_t, float*);

  static constexpr int kGroupsAtOnce = 4 / V::kVectors;  // hides the latency of float sums of few tokens
  static constexpr int kFewTokens = 2;
  static constexpr int64_t kAheadBytes = 4096;  // 2048 was 5 % slower at one token, none 25 %

  // Entry [n - 1] multiplies n tokens.
  struct IntegerTable {
    IntegerFunction packed[kMaxTile], unpacked[kMaxTile];
  };
  struct FloatTable {
    FloatFunction together[kFewTokens], alone[kMaxTile];
  };

  template <int kBits, bool kHasMinimum, bool kIsHalf>
  static const IntegerTable& Integers() {
    static constexpr IntegerTable table = MakeIntegers<kBits, kHasMinimum, kIsHalf>();
    return table;
  }

  template <int kBits, bool kHasMinimum, bool kIsHalf>
  static constexpr IntegerTable MakeIntegers() {
    IntegerTable table{};
    FillIntegers<kBits, kHasMinimum, kIsHalf, true, V::kTile>(table.packed);
    FillIntegers<V::template UnpackedBits<kBits>(), kHasMinimum, kIsHalf, false, V::kTile>(
        table.unpacked);
    return table;
  }

  template <int kBits, bool kHasMinimum, bool kIsHalf, bool kIsPacked, int kTokens>
  static constexpr void FillIntegers(IntegerFunction* table) {
    if constexpr (kTokens > 0) {
      table[kTokens - 1] = IntegerTile<V, kBits, kHasMinimum, kIsHalf, kIsPacked, kTokens>;
      FillIntegers<kBits, kHasMinimum, kIsHalf, kIsPacked, kTokens - 1>(table);
    }
  }

  static const IntegerTable& IntegersOf(const Format& format) {
    if (format.is_half()) return Integers<6, false, true>();
    if (format.has_minimum()) {
      return format.bits == 4 ? Integers<4, true, false>() : Integers<5, true, false>();
    }
    if (format.bits == 4) return Integers<4, false, false>();
    return format.bits == 5 ? Integers<5, false, false>() : Integers<8, false, false>();
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

  // ---- weights ----

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

  // ---- activations ----

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
    alignas(64) int8_t codes[kChunk * kBlock];
    int32_t sums[kChunk * 2];
    float* scale = reinterpret_cast<float*>(data + activations.scale_at) + first * count + t;
    float* sum = reinterpret_cast<float*>(data + activations.sum_at) + first * count + t;
    for (int b = 0; b < blocks; ++b) {
      // The magnitudes are compared as integers, so that a NaN is the largest of all and spoils the
      // scale.
      const float top = V::Largest(chunk + b * kBlock);
      scale[b * count] = top * (1.0f / 127.0f);
      // Blocks of next to nothing become zero: 127 / top would overflow. So do those with an
      // infinity or a NaN; their scale makes the result a NaN.
      const bool is_usual = top > 1e-30f && top < 3e38f;
      V::Round(is_usual ? chunk + b * kBlock : kZeroBlock, is_usual ? 127.0f / top : 0.0f,
               codes + b * kBlock, sums + b * 2);
      sum[b * count] = scale[b * count] * static_cast<float>(sums[b * 2] + sums[b * 2 + 1]);
    }
    char* quads = data + activations.codes_at + first * kBlock * count + t * 4;
    for (int b = 0; b < blocks; ++b) {
      HALOGEN_UNROLL
      for (int j = 0; j < 8; ++j) {
        std::memcpy(quads + (b * 8 + j) * count * 4, codes + (b * 8 + j) * 4, 4);
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

  // ---- the product ----

  static void Multiply(const Product& product, const Activations& activations, int64_t group_begin,
                       int64_t group_end, int64_t tile_begin, int64_t tile_end,
                       const Scratch& scratch) {
    const Format& format = kFormats[product.format];
    const int64_t columns = activations.columns, blocks = activations.blocks();
    const int64_t group_bytes = GroupBytes(format, columns);
    alignas(64) float out[kGroupsAtOnce * kMaxTile * kRows];
    for (int64_t g = group_begin; g < group_end;) {
      const uint8_t* group = product.packed + g * group_bytes;
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
      ExpandScales(format, group, columns, scratch.scale, scratch.minimum);
      const bool is_packed = tile_end - tile_begin <= V::kPackedTiles && !product.is_exact;
      if (!is_packed) codes = Codes(format, codes, blocks, scratch.codes);
      if (product.is_exact) {
        Dequantize(format, codes, scratch.scale, scratch.minimum, columns, scratch.values);
      }
      for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        const int count = activations.tile_tokens(tile);
        const Tile x = TileOf(activations, tile, format);
        if (product.is_exact) {
          FloatsOf(kF32).alone[count - 1](reinterpret_cast<const uint8_t*>(scratch.values), 0, x,
                                          columns, out);
        } else {
          const IntegerTable& table = IntegersOf(format);
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
