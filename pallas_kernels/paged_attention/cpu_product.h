// Products of a few query vectors with many keys or values, held in registers.
//
// Included after cpu_lanes.h, inside the same namespace; hence no include guard. Every element of a
// product is one chain of multiply-adds in the order of the inner dimension, whatever the size of
// the register block that it is part of.

// Queries and vectors per register block: as many accumulators as the registers hold.
constexpr int kMaxRows = HALOGEN_LANES == 4 ? 4 : 6;
constexpr int kMaxVecs = HALOGEN_LANES == 16 ? 4 : 2;
constexpr int kPanel = kMaxVecs * kLanes;  // floats of a register block's row
constexpr int kPair = 2 * kLanes;          // slots scored at once in the cache
constexpr int kGroupRows = 24;             // queries whose scores lie in the first-level cache

// sum [kRows, kVecs vectors] = a [kRows, depth] b, where row_at(i) is row i of b in type T
template <int kRows, int kVecs, typename T, typename RowAt>
HALOGEN_INLINE void Multiply(const float* a, int64_t a_stride, int64_t depth, const RowAt& row_at,
                             Vec (&sum)[kRows][kVecs]) {
  for (int64_t i = 0; i < depth; ++i) {
    const typename T::Element* b = row_at(i);
    Vec b_vec[kVecs];
#pragma GCC unroll 8
    for (int vec = 0; vec < kVecs; ++vec) b_vec[vec] = T::Get(b + vec * kLanes);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const Vec a_vec = Splat(a[row * a_stride + i]);
#pragma GCC unroll 8
      for (int vec = 0; vec < kVecs; ++vec) {
        sum[row][vec] = Fma(a_vec, b_vec[vec], sum[row][vec]);
      }
    }
  }
}

// Scores of kRows queries [., head_dim] and kVecs vectors of transposed keys [head_dim, kPanel].
template <int kRows, int kVecs>
void ScorePanel(const float* query, int64_t head_dim, const float* panel, float* scores) {
  Vec sum[kRows][kVecs] = {};
  Multiply<kRows, kVecs, Float32>(
      query, head_dim, head_dim, [&](int64_t i) { return panel + i * kPanel; }, sum);
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int vec = 0; vec < kVecs; ++vec) {
      Store(scores + row * kTileSlots + vec * kLanes, sum[row][vec]);
    }
  }
}

// Folds kVecs vectors of a tile's outputs, weights [kRows, num_slots] times values, into `output`;
// keep and add are the factors of old and new.
template <int kRows, int kVecs, typename T, typename RowAt>
HALOGEN_INLINE void FoldValues(const float* weights, int64_t num_slots, const RowAt& row_at,
                               const float* keep, const float* add, float* output,
                               int64_t output_stride) {
  Vec sum[kRows][kVecs] = {};
  Multiply<kRows, kVecs, T>(weights, kTileSlots, num_slots, row_at, sum);
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    const Vec kept = Splat(keep[row]), added = Splat(add[row]);
#pragma GCC unroll 8
    for (int vec = 0; vec < kVecs; ++vec) {
      float* at = output + row * output_stride + vec * kLanes;
      Store(at, Fma(Load(at), kept, sum[row][vec] * added));
    }
  }
}

// FoldValues over packed values [num_slots, padded_head], rows as wide as those of the output.
template <int kRows>
void FoldPacked(const float* weights, int64_t num_slots, const float* values, const float* keep,
                const float* add, float* output, int64_t padded_head) {
  FoldValues<kRows, kMaxVecs, Float32>(
      weights, num_slots, [&](int64_t i) { return values + i * padded_head; }, keep, add, output,
      padded_head);
}

// Calls body(number) with a constant of 1 to kMax for `value`.
template <int kMax, typename Body>
HALOGEN_INLINE void WithConstant(int value, const Body& body) {
  if constexpr (kMax > 1) {
    if (value < kMax) return WithConstant<kMax - 1>(value, body);
  }
  body(std::integral_constant<int, kMax>());
}

// Size of a row of outputs and packed values: whole register blocks.
static int64_t PaddedHead(const Step& step) {
  return (step.head_dim + kPanel - 1) / kPanel * kPanel;
}

// Calls body(first row, number of rows) for register blocks of nearly equal size.
template <typename Body>
HALOGEN_INLINE void ForRowBlocks(int num_rows, const Body& body) {
  const int num_blocks = (num_rows + kMaxRows - 1) / kMaxRows;
  const int block_rows = (num_rows + num_blocks - 1) / num_blocks;
  for (int row = 0; row < num_rows; row += block_rows) {
    body(row, std::min(block_rows, num_rows - row));
  }
}
