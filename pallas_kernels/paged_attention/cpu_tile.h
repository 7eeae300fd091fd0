// A tile of the cache: tokens written to it, its slots found, its keys and values read.
//
// Included after cpu_product.h, inside the same namespace; hence no include guard. A tile is read
// where it lies in the cache if one register block holds its queries; for more of them its keys are
// transposed and its values copied to float32 scratch first. Both give the same bits.

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
    Vec vec = GetPart<From>(source + i, count - i);
    // An infinite key would make NaN of every score beside it.
    if (std::is_same<To, Float16>::value) vec = Limit(vec, 65504.0f);
    PutPart<To>(target + i, vec, count - i);
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
  const int64_t* next_offsets;  // of the tile to come, whose keys are fetched ahead; null = none
  const Element* keys;
  const Element* values;

  static bool Serves(const Step& step, int64_t num_rows) {
    return num_rows <= kMaxRows && step.head_dim % (kPanel) == 0;
  }

  void Score(const float* query, int num_rows, int from, int to, float* scores) const {
    WithConstant<kMaxRows>(num_rows, [&](auto rows) {
      for (int slot = from / kPair * kPair; slot < to; slot += kPair) {
        ScoreSlots<rows()>(query, slot, slot + kPair < to ? slot + kPair : slot, scores + slot);
      }
    });
  }

  // Two vectors of slots at once, so that their chains of multiply-adds run side by side; those
  // that come after them begin at slot `next`.
  template <int kRows>
  __attribute__((noinline)) void ScoreSlots(const float* query, int slot, int next,
                                            float* scores) const {
    Vec sum[kRows][2] = {};
    for (int64_t dim = 0; dim < step.head_dim; dim += kLanes) {
#pragma GCC unroll 2
      for (int vec = 0; vec < 2; ++vec) {
        const int64_t* at = offsets + slot + vec * kLanes;
        Vec rows[kLanes];
        LoadTransposed<T>(keys + dim, at, rows);
        // Once per cache line: the next keys, and these slots' values, which are wanted after all
        // scores. Those go into the second cache, which took 15 to 20 % less time than the first on
        // AMD's Zen 4.
        if (dim * sizeof(Element) % 64 == 0) {
#pragma GCC unroll 16
          for (int i = 0; i < kLanes; ++i) {
            __builtin_prefetch(keys + dim + offsets[next + vec * kLanes + i]);
            __builtin_prefetch(values + dim + at[i], 0, 2);
          }
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
    if (next_offsets == nullptr) {
      FoldValues<kRows, kMaxVecs, T>(
          weights, end - first, [&](int64_t i) { return from + at[i]; }, keep, add, output,
          step.head_dim);
      return;
    }
    const Element* ahead = keys + dim;
    const int64_t* next = next_offsets + first;
    const auto fetch_and_get = [&](int64_t i) {
#pragma GCC unroll 4
      for (int64_t line = 0; line < kPanel; line += 64 / int64_t{sizeof(Element)}) {
        __builtin_prefetch(ahead + next[i] + line, 0, 2);
      }
      return from + at[i];
    };
    FoldValues<kRows, kMaxVecs, T>(weights, end - first, fetch_and_get, keep, add, output,
                                   step.head_dim);
  }
};
