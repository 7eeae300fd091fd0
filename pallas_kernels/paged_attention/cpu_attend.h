// Attention of one block of query vectors over a run of context tiles.
//
// Included after cpu_tile.h, inside the same namespace; hence no include guard. Every number of the
// result is one chain of operations in a fixed order (over the head for a score, over the slots of
// a tile for an output, over tiles in between), and slots that a query does not see add exactly
// nothing: a row's bits depend neither on the queries beside it nor on where work was cut.

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

// The slots of a tile that some token of the block sees: [*first, *end).
static void FindTile(const Step& step, const TileOfBlock& at, int64_t* first, int64_t* end,
                     int64_t* offsets) {
  const Block& block = *at.block;
  const int64_t position = step.Position(block.row, block.first_token);
  const int64_t start = at.tile * kTileSlots;
  *first = std::max<int64_t>(step.FirstSlot(position) - start, 0);
  *end = std::min<int64_t>(position + block.num_tokens - start, kTileSlots);
  FindSlots(step, block.row, at.tile, *first, *end, offsets);
}

// Adds tile `tile` to the softmax of all query vectors of the block; T is the cache's type. The
// keys of the tile that the caller adds next are fetched meanwhile: a context lies in many places,
// which no hardware foresees.
template <typename T>
void AddTileOf(const Step& step, const Block& block, int64_t tile, const TileOfBlock& next,
               const Scratch& scratch, const Softmax& softmax) {
  const int64_t position = step.Position(block.row, block.first_token);
  const int64_t start = tile * kTileSlots;
  int64_t first, end, next_first, next_end;
  int64_t offsets[kTileSlots], next_offsets[kTileSlots];
  FindTile(step, {&block, tile}, &first, &end, offsets);
  const int64_t num_rows = block.num_tokens * step.group();
  const bool is_cached = CachedTile<T>::Serves(step, num_rows);
  const bool has_next = is_cached && next.block != nullptr;
  if (has_next) {
    FindTile(step, next, &next_first, &next_end, next_offsets);
    std::fill(next_offsets, next_offsets + next_first, next_offsets[next_first]);
    std::fill(next_offsets + next_end, next_offsets + kTileSlots, next_offsets[next_first]);
  }
  for (int64_t head = 0; head < block.num_kv_heads; ++head) {
    const int64_t base = head * num_rows;
    const float* query = scratch.query + base * step.head_dim;
    const Softmax own{softmax.top + base, softmax.total + base,
                      softmax.output + base * PaddedHead(step)};
    if (is_cached) {
      const int64_t at = (block.first_kv_head + head) * step.head_dim;
      using Element = typename T::Element;
      const CachedTile<T> cached{step, offsets, has_next ? next_offsets : nullptr,
                                 reinterpret_cast<const Element*>(step.keys) + at,
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

static void AddTile(const Step& step, const Block& block, int64_t tile, const TileOfBlock& next,
                    const Scratch& scratch, const Softmax& softmax) {
  switch (step.cache_type) {
    case Type::kFloat32:
      return AddTileOf<Float32>(step, block, tile, next, scratch, softmax);
    case Type::kBFloat16:
      return AddTileOf<BFloat16>(step, block, tile, next, scratch, softmax);
    case Type::kFloat16:
      return AddTileOf<Float16>(step, block, tile, next, scratch, softmax);
  }
}

// The tile after `tile` of a block's tiles up to `end`, then the first one of the block `after`.
static TileOfBlock NextTile(const Block& block, int64_t tile, int64_t end, const Block* after) {
  if (tile + 1 < end) return {&block, tile + 1};
  if (after == nullptr || after->first_kv_head != block.first_kv_head) return {nullptr, 0};
  return {after, after->first_tile};
}

// A whole block: writes its part of the output. `after` is the block that this thread attends
// next, null = not known.
static void AttendBlock(const Step& step, const Block& block, const Block* after, float* memory) {
  const Scratch scratch(step, block.num_rows, memory);
  PackQueries(step, block, scratch.query);
  BeginWithSinks(step, block, scratch.softmax);
  for (int64_t tile = block.first_tile; tile < block.end_tile; ++tile) {
    AddTile(step, block, tile, NextTile(block, tile, block.end_tile, after), scratch,
            scratch.softmax);
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
    AddTile(step, block, tile, NextTile(block, tile, end, nullptr), scratch, part);
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
