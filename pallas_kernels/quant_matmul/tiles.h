// Products of one tile of tokens with one group of rows, for an instruction set V: V::F are
// V::kLanes floats, V::C as many groups of 4 codes, V::Dot<bits> adds up the products of codes, and
// V::kVectors vectors of rows are worked on at once, for V::kTile tokens or, where their codes have
// two parts, V::kTileOfTwo. A translation unit defines V and includes kernel.h.
//
// This and the headers that include it are local to a translation unit and use no function template
// of the standard library, because they are compiled for that unit's instruction set: a copy that
// the linker shares with other units would fail on lesser machines.

#ifndef HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_TILES_H_
#define HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_TILES_H_

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
// second cache (into the first it cost 7 % on AMD's Zen 4). The hardware's prefetcher stops at pages
// and starts anew at each of the small matrices.
struct Ahead {
  const uint8_t* at;
  int64_t step;

  void Fetch(int64_t block) const {
    for (int64_t i = 0; i < step; i += 64) __builtin_prefetch(at + block * step + i, 0, 2);
  }
};

// 32 rows times kTokens tokens, integer dot products. codes: packed blocks, or a byte per code.
// out [kTokens][32].
template <typename V, int kParts, int kBits, bool kHasMinimum, bool kIsHalf, bool kIsPacked,
          int kTokens>
void IntegerTile(const uint8_t* codes, const float* scale, const float* minimum, const Tile& x,
                 int64_t blocks, const Ahead& ahead, float* out) {
  using F = typename V::F;
  using Dot = typename V::template Dot<kBits>;
  constexpr int kBlockBytes = kQuad * (kIsPacked ? kBits : 8);
  constexpr int kScales = kIsHalf ? 2 : 1, kSteps = 8 / kScales;  // of a block
  constexpr int kCodes = kParts * kTokens;
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
      const int8_t* columns = x.codes + b * kBlock * kCodes;
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
      for (int part = 0; part < kScales; ++part) {
        Dot dot[kCodes][kVectors];
        HALOGEN_UNROLL
        for (int t = 0; t < kCodes; ++t) {
          const int last = t - (kCodes - kTokens);  // token whose last part this is
          const bool has_start = !kHasMinimum && last >= 0;
          const int64_t at = (b * kScales + part) * kTokens + last;
          HALOGEN_UNROLL
          for (int v = 0; v < kVectors; ++v) {
            dot[t][v].Start(has_start ? x.start + at : nullptr);
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
          for (int t = 0; t < kCodes; ++t) {
            const typename V::C four = V::BroadcastCodes(columns + (j * kCodes + t) * 4);
            HALOGEN_UNROLL
            for (int v = 0; v < kVectors; ++v) dot[t][v].Add(operand[v], four, step);
          }
        }
        F factor[kVectors];
        HALOGEN_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          factor[v] = V::Load(scale + (b * kScales + part) * kRows + first + v * V::kLanes);
        }
        HALOGEN_UNROLL
        for (int t = 0; t < kTokens; ++t) {
          const F own = V::Broadcast(x.scale + b * kTokens + t);
          HALOGEN_UNROLL
          for (int v = 0; v < kVectors; ++v) {
            if (kParts == 2) dot[t][v].Append(dot[t + kCodes - kTokens][v]);
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

}  // namespace
}  // namespace halogen

#endif  // HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_TILES_H_
