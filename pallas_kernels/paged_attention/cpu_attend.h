// Attention of one block of query vectors over a run of context tiles, for one instruction set.
//
// Included by one translation unit per instruction set, after cpu_lanes.h and inside the same
// namespace; hence no include guard. A tile is read where it lies in the cache if a register block
// holds its queries; for more of them its keys are transposed and its values copied to float32
// scratch first. Either way every number of the result is one chain of operations in a fixed order
// (over the head for a score, over the slots of a tile for an output, over tiles in between), and
// slots that a query does not see add exactly nothing: a row's bits depend neither on the queries
// beside it nor on where work was cut.

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

// Scratch of one thread, carved from one piece of memory.
struct Scratch {
  Scratch(const Step& step, int64_t num_rows, float* memory) {
    const int64_t padded_head = PaddedHead(step);
    const auto take = [&](int64_t count) {
      float* const part = memory == nullptr ? nullptr : memory + size;
      size += (count + kPanel - 1) / kPanel * kPanel;
      return part;
    };
    query = take(num_rows * step.head_dim);
    keys = take(kTileSlots * step.head_dim);
    values = take(kTileSlots * padded_head);
    scores = take(kGroupRows * kTileSlots);
    softmax.output = take(num_rows * padded_head);
    softmax.top = take(num_rows);
    softmax.total = take(num_rows);
  }

  int64_t size = 0;
  float *query, *keys, *values, *scores;
  Softmax softmax;
};

static int64_t ScratchSize(const Step& step, int64_t num_rows) {
  return Scratch(step, num_rows, nullptr).size;
}

static int64_t PartSize(const Step& step, int64_t num_rows) {
  return num_rows * (PaddedHead(step) + 2);
}

template <typename From, typename To>
void ConvertAll(const char* from, char* to, int64_t count) {
  const auto* source = reinterpret_cast<const typename From::Element*>(from);
  auto* target = reinterpret_cast<typename To::Element*>(to);
  for (int64_t i = 0; i < count; i += kLanes) {
    PutPart<To>(target + i, GetPart<From>(source + i, count - i), count - i);
  }
}

template <typename From>
void ConvertTo(const char* from, Type to_type, char* to, int64_t count) {
  switch (to_type) {
    case Type::kFloat32:
      return ConvertAll<From, Float32>(from, to, count);
    case Type::kBFloat16:
      return ConvertAll<From, BFloat16>(from, to, count);
    case Type::kFloat16:
      return ConvertAll<From, Float16>(from, to, count);
  }
}

static void Convert(Type from_type, const char* from, Type to_type, char* to, int64_t count) {
  if (from_type == to_type) {
    memcpy(to, from, count * BytesOf(to_type));
    return;
  }
  switch (from_type) {
    case Type::kFloat32:
      return ConvertTo<Float32>(from, to_type, to, count);
    case Type::kBFloat16:
      return ConvertTo<BFloat16>(from, to_type, to, count);
    case Type::kFloat16:
      return ConvertTo<Float16>(from, to_type, to, count);
  }
}

// Keys and values of tokens [first, end) into the cache.
static void WriteTokens(const Step& step, int64_t first, int64_t end) {
  const int64_t size = step.num_kv_heads * step.head_dim;
  const int64_t num_slots = step.num_blocks * step.block_size;
  for (int64_t token = first; token < end; ++token) {
    const int64_t slot = step.slot_mapping[token];
    if (slot < 0 || slot >= num_slots) continue;
    const int64_t to = (step.layer * num_slots + slot) * size * BytesOf(step.cache_type);
    const int64_t from = token * size * BytesOf(step.token_type);
    Convert(step.token_type, step.k + from, step.cache_type, step.keys + to, size);
    Convert(step.token_type, step.v + from, step.cache_type, step.values + to, size);
  }
}

// Query vectors [key head, token, group] of the block, scaled so that scores are in units of log 2
// (or, under a softcap, in units of the cap).
static void PackQueries(const Step& step, const Block& block, float* query) {
  const int64_t group = step.group(), head_dim = step.head_dim;
  const Vec factor = Splat(step.scale * (step.softcap > 0 ? 1 / step.softcap : kLog2E));
  for (int64_t head = 0; head < block.num_kv_heads; ++head) {
    for (int64_t token = 0; token < block.num_tokens; ++token) {
      const int64_t at = ((block.first_token + token) * step.num_heads +
                          (block.first_kv_head + head) * group) * head_dim;
      const int64_t size = group * head_dim;
      Convert(step.token_type, step.q + at * BytesOf(step.token_type), Type::kFloat32,
              reinterpret_cast<char*>(query), size);
      for (int64_t i = 0; i < size; i += kLanes) {
        const Vec scaled = GetPart<Float32>(query + i, size - i) * factor;
        PutPart<Float32>(query + i, scaled, size - i);
      }
      query += size;
    }
  }
}

// Slots [first, end) of a tile: where each lies in the cache, in elements. The slots that complete
// the first and the last pair of vectors get one in use, so that loading them is safe.
static void FindSlots(const Step& step, int64_t row, int64_t tile, int64_t first, int64_t end,
                      int64_t* offsets) {
  const int64_t slot_size = step.num_kv_heads * step.head_dim;
  for (int64_t slot = first; slot < end;) {
    const int64_t position = tile * kTileSlots + slot;
    int64_t block = step.block_table[row * step.table_width + position / step.block_size];
    block = std::min(std::max<int64_t>(block, 0), step.num_blocks - 1);
    int64_t offset = position % step.block_size;
    const int64_t base = (step.layer * step.num_blocks + block) * step.block_size;
    for (; slot < end && offset < step.block_size; ++slot, ++offset) {
      offsets[slot] = (base + offset) * slot_size;
    }
  }
  for (int64_t slot = first; slot % kPair; --slot) offsets[slot - 1] = offsets[first];
  for (int64_t slot = end; slot % kPair; ++slot) offsets[slot] = offsets[end - 1];
}

template <typename T>
HALOGEN_INLINE void LoadTransposed(const typename T::Element* cache, const int64_t* offsets,
                                   Vec (&rows)[kLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) rows[i] = T::Get(cache + offsets[i]);
  Transpose(rows);
}

// Transposes keys [first, end) of a tile, widened to whole vectors, into panels [head_dim, kPanel].
template <typename T>
void PackKeys(const Step& step, const int64_t* offsets, int64_t head, int64_t first, int64_t end,
              float* packed) {
  const auto* cache = reinterpret_cast<const typename T::Element*>(step.keys) +
                      head * step.head_dim;
  for (int64_t slot = first / kLanes * kLanes; slot < end; slot += kLanes) {
    float* panel = packed + slot / kPanel * kPanel * step.head_dim + slot % kPanel;
    int64_t dim = 0;
    for (; dim + kLanes <= step.head_dim; dim += kLanes) {
      Vec rows[kLanes];
      LoadTransposed<T>(cache + dim, offsets + slot, rows);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) Store(panel + (dim + i) * kPanel, rows[i]);
    }
    for (int i = 0; dim < step.head_dim && i < kLanes; ++i) {
      float key[kLanes];
      Store(key, GetPart<T>(cache + offsets[slot + i] + dim, step.head_dim - dim));
      for (int64_t j = 0; dim + j < step.head_dim; ++j) panel[(dim + j) * kPanel + i] = key[j];
    }
  }
}

// Values [first, end) of a tile as rows of padded_head floats.
template <typename T>
void PackValues(const Step& step, const int64_t* offsets, int64_t head, int64_t first, int64_t end,
                float* packed) {
  const auto* cache = reinterpret_cast<const typename T::Element*>(step.values) +
                      head * step.head_dim;
  const int64_t padded_head = PaddedHead(step);
  for (int64_t slot = first; slot < end; ++slot) {
    const auto* value = cache + offsets[slot];
    float* row = packed + slot * padded_head;
    int64_t dim = 0;
    for (; dim + kLanes <= step.head_dim; dim += kLanes) Store(row + dim, T::Get(value + dim));
    for (; dim < padded_head; dim += kLanes) {
      Store(row + dim, GetPart<T>(value + dim, std::max<int64_t>(step.head_dim - dim, 0)));
    }
  }
}

// Where AttendTile finds a tile of one key head: in packed scratch, which many queries share ...
struct PackedTile {
  const Step& step;
  const Scratch& scratch;

  // Scores of queries [num_rows, head_dim] for slots [from, to), whole vectors.
  void Score(const float* query, int num_rows, int from, int to, float* scores) const {
    const int64_t head_dim = step.head_dim;
    for (int slot = from; slot < to;) {
      const int panel_end = std::min(slot / kPanel * kPanel + kPanel, to);
      const float* panel = scratch.keys + slot / kPanel * kPanel * head_dim + slot % kPanel;
      ForRowBlocks(num_rows, [&](int row, int count) {
        WithConstant<kMaxRows>(count, [&](auto rows) {
          WithConstant<kMaxVecs>((panel_end - slot) / kLanes, [&](auto vecs) {
            ScorePanel<rows(), vecs()>(query + row * head_dim, head_dim, panel,
                                       scores + row * kTileSlots + slot);
          });
        });
      });
      slot = panel_end;
    }
  }

  // Folds the outputs of num_rows <= kMaxRows queries over slots [first, end).
  void Fold(const float* weights, int num_rows, int first, int end, const float* keep,
            const float* add, float* output) const {
    const int64_t padded_head = PaddedHead(step);
    WithConstant<kMaxRows>(num_rows, [&](auto rows) {
      for (int64_t dim = 0; dim < padded_head; dim += kPanel) {
        FoldPacked<rows()>(weights + first, end - first,
                           scratch.values + first * padded_head + dim, keep, add, output + dim,
                           padded_head);
      }
    });
  }
};

// ... or in the cache itself, which is cheaper for the few queries of one register block.
template <typename T>
struct CachedTile {
  using Element = typename T::Element;
  const Step& step;
  const int64_t* offsets;
  const Element* keys;
  const Element* values;

  static bool Serves(const Step& step, int64_t num_rows) {
    return num_rows <= kMaxRows && step.head_dim % (kPanel) == 0;
  }

  void Score(const float* query, int num_rows, int from, int to, float* scores) const {
    WithConstant<kMaxRows>(num_rows, [&](auto rows) {
      for (int slot = from / kPair * kPair; slot < to; slot += kPair) {
        ScoreSlots<rows()>(query, slot, scores + slot);
      }
    });
  }

  // Two vectors of slots at once, so that their chains of multiply-adds run side by side.
  template <int kRows>
  __attribute__((noinline)) void ScoreSlots(const float* query, int slot, float* scores) const {
    Vec sum[kRows][2] = {};
    for (int64_t dim = 0; dim < step.head_dim; dim += kLanes) {
#pragma GCC unroll 2
      for (int vec = 0; vec < 2; ++vec) {
        const int64_t* at = offsets + slot + vec * kLanes;
        Vec rows[kLanes];
        LoadTransposed<T>(keys + dim, at, rows);
        if (dim * sizeof(Element) % 64 == 0) {  // once per cache line: values are wanted next
#pragma GCC unroll 16
          for (int i = 0; i < kLanes; ++i) __builtin_prefetch(values + dim + at[i]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
#pragma GCC unroll 8
          for (int row = 0; row < kRows; ++row) {
            const Vec factor = Splat(query[row * step.head_dim + dim + i]);
            sum[row][vec] = Fma(factor, rows[i], sum[row][vec]);
          }
        }
      }
    }
    for (int row = 0; row < kRows; ++row) {
      for (int vec = 0; vec < 2; ++vec) {
        Store(scores + row * kTileSlots + vec * kLanes, sum[row][vec]);
      }
    }
  }

  void Fold(const float* weights, int num_rows, int first, int end, const float* keep,
            const float* add, float* output) const {
    WithConstant<kMaxRows>(num_rows, [&](auto rows) {
      for (int64_t dim = 0; dim < step.head_dim; dim += kPanel) {
        FoldSlots<rows()>(weights + first, first, end, dim, keep, add, output + dim);
      }
    });
  }

  template <int kRows>
  __attribute__((noinline)) void FoldSlots(const float* weights, int first, int end, int64_t dim,
                                           const float* keep, const float* add,
                                           float* output) const {
    const Element* from = values + dim;
    const int64_t* at = offsets + first;
    FoldValues<kRows, kMaxVecs, T>(
        weights, end - first, [&](int64_t i) { return from + at[i]; }, keep, add, output,
        step.head_dim);
  }
};

// Scores in vectors [from, to) become weights; their largest and the weights' sum.
HALOGEN_INLINE void WeighRow(float* scores, int from, int to, float* top, float* total) {
  Vec largest = Splat(kMasked);
#pragma GCC unroll 8
  for (int slot = from; slot < to; slot += kLanes) largest = Max(largest, Load(scores + slot));
  *top = LargestLane(largest);
  // A row that sees nothing here: any top makes its weights 0, except kMasked itself.
  const Vec shift = Splat(*top == kMasked ? 0.0f : *top);
  Vec sum = {};
#pragma GCC unroll 8
  for (int slot = from; slot < to; slot += kLanes) {
    const Vec weight = Exp2(Load(scores + slot) - shift);
    Store(scores + slot, weight);
    sum += weight;
  }
  *total = SumOfLanes(sum);
}

// Softmax within a tile of `num_rows` queries, at most kGroupRows: scores become weights in place;
// top and total per row. Row i sees slots [first[i], end[i]); vectors [from, to) hold scores.
static void Weigh(const Step& step, int num_rows, const int* first, const int* end, int from,
                  int to, float* scores, float* top, float* total) {
  IntVec lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  for (int row = 0; row < num_rows; ++row, scores += kTileSlots) {
    if (step.softcap > 0) {
      for (int slot = from; slot < to; slot += kLanes) {
        Store(scores + slot, Tanh(Load(scores + slot)) * (step.softcap * kLog2E));
      }
    }
    if (first[row] > from || end[row] < to) {
      for (int slot = from; slot < to; slot += kLanes) {
        const IntVec index = lane + slot;
        const IntVec is_seen = (index >= first[row]) & (index < end[row]);
        Store(scores + slot, is_seen ? Load(scores + slot) : Splat(kMasked));
      }
    }
    if (from == 0 && to == kTileSlots) {
      WeighRow(scores, 0, kTileSlots, top + row, total + row);  // constants: unrolled
    } else {
      WeighRow(scores, from, to, top + row, total + row);
    }
  }
}

// Folds a tile's tops and totals into the running ones of `num_rows` queries; keep and add are the
// factors for the running and the tile's outputs.
static void FoldTotals(int64_t num_rows, const float* tile_top, const float* tile_total,
                       float* top, float* total, float* keep, float* add) {
  for (int64_t row = 0; row < num_rows; row += kLanes) {
    const int64_t count = num_rows - row;
    const Vec old_top = GetPart<Float32>(top + row, count);
    const Vec new_top = GetPart<Float32>(tile_top + row, count);
    const Vec both = Max(old_top, new_top);
    const Vec kept = Exp2(old_top - both), added = Exp2(new_top - both);
    const Vec sum = Fma(GetPart<Float32>(total + row, count), kept,
                        GetPart<Float32>(tile_total + row, count) * added);
    PutPart<Float32>(top + row, both, count);
    PutPart<Float32>(total + row, sum, count);
    PutPart<Float32>(keep + row, kept, count);
    PutPart<Float32>(add + row, added, count);
  }
}

HALOGEN_INLINE void FoldOutput(float* output, const float* tile_output, int64_t size, float keep,
                               float add) {
  const Vec kept = Splat(keep), added = Splat(add);
  for (int64_t i = 0; i < size; i += kLanes) {
    Store(output + i, Fma(Load(output + i), kept, Load(tile_output + i) * added));
  }
}

// Adds a tile to the softmax of query vectors [first_row, first_row + num_rows) of one key head; at
// most kGroupRows. `position` is the first query token's, `tile_start` the tile's slot 0.
template <typename Tile>
void AttendTile(const Step& step, const Tile& tile, const float* query, int64_t position,
                int64_t tile_start, int64_t first_row, int num_rows, float* scores,
                const Softmax& softmax) {
  const int64_t group = step.group();
  int first[kGroupRows], end[kGroupRows];
  int from = kTileSlots, to = 0;
  for (int row = 0; row < num_rows; ++row) {
    const int64_t own = position + (first_row + row) / group;
    first[row] = int(std::max<int64_t>(step.FirstSlot(own) - tile_start, 0));
    end[row] = int(std::min<int64_t>(own + 1 - tile_start, kTileSlots));
    if (first[row] < end[row]) {
      from = std::min(from, first[row]);
      to = std::max(to, end[row]);
    }
  }
  if (from >= to) return;
  from = from / kLanes * kLanes;
  to = (to + kLanes - 1) / kLanes * kLanes;
  tile.Score(query + first_row * step.head_dim, num_rows, from, to, scores);

  float top[kGroupRows], total[kGroupRows], keep[kGroupRows], add[kGroupRows];
  Weigh(step, num_rows, first, end, from, to, scores, top, total);
  FoldTotals(num_rows, top, total, softmax.top + first_row, softmax.total + first_row, keep, add);

  const int64_t padded_head = PaddedHead(step);
  ForRowBlocks(num_rows, [&](int row, int count) {
    const int seen = *std::min_element(first + row, first + row + count);
    const int seen_end = *std::max_element(end + row, end + row + count);
    if (seen >= seen_end) return;
    tile.Fold(scores + row * kTileSlots, count, seen, seen_end, keep + row, add + row,
              softmax.output + (first_row + row) * padded_head);
  });
}

static void Begin(const Step& step, int64_t num_rows, const Softmax& softmax) {
  std::fill_n(softmax.top, num_rows, kMasked);
  std::fill_n(softmax.total, num_rows, 0.0f);
  std::fill_n(softmax.output, num_rows * PaddedHead(step), 0.0f);
}

// As Begin, with the sinks as a first score of value 0.
static void BeginWithSinks(const Step& step, const Block& block, const Softmax& softmax) {
  Begin(step, block.num_rows, softmax);
  if (step.sinks == nullptr) return;
  const int64_t group = step.group();
  for (int64_t row = 0; row < block.num_rows; ++row) {
    const int64_t kv_head = block.first_kv_head + row / (block.num_tokens * group);
    softmax.top[row] = step.sinks[kv_head * group + row % group] * kLog2E;
    softmax.total[row] = 1.0f;
  }
}

static void Finish(const Step& step, const Block& block, const Softmax& softmax) {
  const int64_t group = step.group(), head_dim = step.head_dim, padded_head = PaddedHead(step);
  const int64_t head_rows = block.num_tokens * group;
  for (int64_t row = 0; row < block.num_rows; ++row) {
    const int64_t token = block.first_token + row % head_rows / group;
    const int64_t head = (block.first_kv_head + row / head_rows) * group + row % group;
    const Vec total = Splat(softmax.total[row] == 0 ? 1.0f : softmax.total[row]);
    float* output = softmax.output + row * padded_head;
    for (int64_t i = 0; i < padded_head; i += kLanes) Store(output + i, Load(output + i) / total);
    Convert(Type::kFloat32, reinterpret_cast<const char*>(output), step.token_type,
            step.out + (token * step.num_heads + head) * head_dim * BytesOf(step.token_type),
            head_dim);
  }
}

// Adds tile `tile` to the softmax of all query vectors of the block; T is the cache's type.
template <typename T>
void AddTileOf(const Step& step, const Block& block, int64_t tile, const Scratch& scratch,
               const Softmax& softmax) {
  const int64_t position = step.Position(block.row, block.first_token);
  const int64_t start = tile * kTileSlots;
  const int64_t first = std::max<int64_t>(step.FirstSlot(position) - start, 0);
  const int64_t end = std::min<int64_t>(position + block.num_tokens - start, kTileSlots);
  int64_t offsets[kTileSlots];
  FindSlots(step, block.row, tile, first, end, offsets);
  const int64_t num_rows = block.num_tokens * step.group();
  for (int64_t head = 0; head < block.num_kv_heads; ++head) {
    const int64_t base = head * num_rows;
    const float* query = scratch.query + base * step.head_dim;
    const Softmax own{softmax.top + base, softmax.total + base,
                      softmax.output + base * PaddedHead(step)};
    if (CachedTile<T>::Serves(step, num_rows)) {
      const int64_t at = (block.first_kv_head + head) * step.head_dim;
      using Element = typename T::Element;
      const CachedTile<T> cached{step, offsets, reinterpret_cast<const Element*>(step.keys) + at,
                                 reinterpret_cast<const Element*>(step.values) + at};
      AttendTile(step, cached, query, position, start, 0, int(num_rows), scratch.scores, own);
      continue;
    }
    PackKeys<T>(step, offsets, block.first_kv_head + head, first, end, scratch.keys);
    PackValues<T>(step, offsets, block.first_kv_head + head, first, end, scratch.values);
    for (int64_t row = 0; row < num_rows; row += kGroupRows) {
      AttendTile(step, PackedTile{step, scratch}, query, position, start, row,
                 int(std::min<int64_t>(kGroupRows, num_rows - row)), scratch.scores, own);
    }
  }
}

static void AddTile(const Step& step, const Block& block, int64_t tile, const Scratch& scratch,
                    const Softmax& softmax) {
  switch (step.cache_type) {
    case Type::kFloat32:
      return AddTileOf<Float32>(step, block, tile, scratch, softmax);
    case Type::kBFloat16:
      return AddTileOf<BFloat16>(step, block, tile, scratch, softmax);
    case Type::kFloat16:
      return AddTileOf<Float16>(step, block, tile, scratch, softmax);
  }
}

// A whole block: writes its part of the output.
static void AttendBlock(const Step& step, const Block& block, float* memory) {
  const Scratch scratch(step, block.num_rows, memory);
  PackQueries(step, block, scratch.query);
  BeginWithSinks(step, block, scratch.softmax);
  for (int64_t tile = block.first_tile; tile < block.end_tile; ++tile) {
    AddTile(step, block, tile, scratch, scratch.softmax);
  }
  Finish(step, block, scratch.softmax);
}

// Where tile `index` of a divided block keeps its softmax.
static Softmax TilePart(const Step& step, const Block& block, int64_t index, float* parts) {
  float* part = parts + index * PartSize(step, block.num_rows);
  return {part, part + block.num_rows, part + 2 * block.num_rows};
}

// Tiles [first, end) of a divided block, each into its own part.
static void AttendTiles(const Step& step, const Block& block, int64_t first, int64_t end,
                        float* parts, float* memory) {
  const Scratch scratch(step, block.num_rows, memory);
  PackQueries(step, block, scratch.query);
  for (int64_t tile = first; tile < end; ++tile) {
    const Softmax part = TilePart(step, block, tile - block.first_tile, parts);
    Begin(step, block.num_rows, part);
    AddTile(step, block, tile, scratch, part);
  }
}

// Folds the parts of a divided block, in the order of the tiles, and writes the output.
static void FoldTiles(const Step& step, const Block& block, float* parts, float* memory) {
  const Scratch scratch(step, block.num_rows, memory);
  const int64_t padded_head = PaddedHead(step);
  const Softmax& softmax = scratch.softmax;
  BeginWithSinks(step, block, softmax);
  for (int64_t index = 0; index < block.end_tile - block.first_tile; ++index) {
    const Softmax part = TilePart(step, block, index, parts);
    for (int64_t row = 0; row < block.num_rows; row += kGroupRows) {
      const int64_t count = std::min<int64_t>(kGroupRows, block.num_rows - row);
      float keep[kGroupRows], add[kGroupRows];
      FoldTotals(count, part.top + row, part.total + row, softmax.top + row, softmax.total + row,
                 keep, add);
      for (int64_t i = 0; i < count; ++i) {
        FoldOutput(softmax.output + (row + i) * padded_head,
                   part.output + (row + i) * padded_head, padded_head, keep[i], add[i]);
      }
    }
  }
  Finish(step, block, softmax);
}
