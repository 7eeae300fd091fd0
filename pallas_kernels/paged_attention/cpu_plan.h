// Cuts a step of paged attention into pieces and runs them on a thread pool.
//
// Small steps run on the caller alone, since waking a thread costs more than they do. How many
// threads there are decides where work is cut, never what comes out.

#ifndef HALOGEN_PALLAS_KERNELS_PAGED_ATTENTION_CPU_PLAN_H_
#define HALOGEN_PALLAS_KERNELS_PAGED_ATTENTION_CPU_PLAN_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "pallas_kernels/paged_attention/cpu_step.h"
#include "pallas_kernels/paged_attention/cpu_variants.h"
#include "pallas_kernels/parallel.h"

namespace halogen::paged_attention {

struct Config {
  int64_t block_rows = 192;       // query vectors of a block at most: they share packed tiles
  int64_t block_floats = 49152;   // and are no more numbers than this, for the second-level cache
  int64_t min_block_rows = 48;    // fewer only where a row has no more
  int64_t pack_rows = 4;          // packing a tile costs as much as so many query vectors
  int64_t pieces_per_thread = 4;  // evens out pieces of unequal cost
  // Costs are in query vectors x tiles x head_dim; 2500 take about 15 microseconds.
  int64_t inline_cost = 2500;
  int64_t max_parts = int64_t{1} << 21;  // floats that the tiles of a divided block may keep
  int64_t inline_tokens_size = int64_t{1} << 15;  // elements of keys that the caller writes alone
};

// A piece of a block: all of it, or tiles [first_tile, end_tile).
struct Piece {
  int64_t block, first_tile, end_tile, cost;
};

// The pieces of a step, the dearest first.
struct Plan {
  std::vector<Block> blocks;
  std::vector<Piece> pieces;
  int64_t cost = 0;
};

inline Plan MakePlan(const Step& step, int64_t num_threads, const Config& config) {
  Plan plan;
  const auto cost_of = [&](const Block& block, int64_t num_tiles) {
    return num_tiles * (block.num_kv_heads * config.pack_rows + block.num_rows) * step.head_dim;
  };
  const int64_t most_rows = std::min(config.block_rows, config.block_floats / step.head_dim);
  const int64_t fair_rows = step.row_start[step.num_rows] * step.num_heads /
                            (num_threads * config.pieces_per_thread);
  const int64_t block_rows =
      std::max(std::min(most_rows, fair_rows), std::min(most_rows, config.min_block_rows));
  for (int64_t row = 0; row < step.num_rows; ++row) {
    const int64_t row_end = step.row_start[row + 1];
    int64_t num_tokens = std::max<int64_t>(block_rows / step.group(), 1);
    for (int64_t token = step.row_start[row]; token < row_end; token += num_tokens) {
      num_tokens = std::min(num_tokens, row_end - token);
      const int64_t head_rows = num_tokens * step.group();
      const int64_t num_heads = std::max<int64_t>(
          std::min(block_rows / head_rows, step.num_kv_heads), 1);
      const int64_t position = step.Position(row, token);
      for (int64_t head = 0; head < step.num_kv_heads; head += num_heads) {
        const int64_t count = std::min(num_heads, step.num_kv_heads - head);
        plan.blocks.push_back({row, token, num_tokens, head, count,
                               step.FirstSlot(position) / kTileSlots,
                               (position + num_tokens + kTileSlots - 1) / kTileSlots,
                               head_rows * count});
        const Block& block = plan.blocks.back();
        plan.cost += cost_of(block, block.end_tile - block.first_tile);
      }
    }
  }
  const int64_t target =
      num_threads == 1 || plan.cost < config.inline_cost
          ? plan.cost
          : std::max(plan.cost / (num_threads * config.pieces_per_thread), config.inline_cost / 4);
  for (int64_t i = 0; i < int64_t(plan.blocks.size()); ++i) {
    const Block& block = plan.blocks[i];
    const int64_t num_tiles = block.end_tile - block.first_tile;
    int64_t tiles = num_tiles;
    if (num_tiles * block.num_rows * step.head_dim <= config.max_parts) {
      tiles = std::min(num_tiles, std::max<int64_t>(target / cost_of(block, 1), 1));
    }
    for (int64_t tile = block.first_tile; tile < block.end_tile; tile += tiles) {
      const int64_t end = std::min(tile + tiles, block.end_tile);
      plan.pieces.push_back({i, tile, end, cost_of(block, end - tile)});
    }
  }
  std::stable_sort(plan.pieces.begin(), plan.pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.cost > b.cost; });
  return plan;
}

// Memory of the calling thread for `size` floats, aligned to 64 bytes; holds until the next call.
inline float* ThreadScratch(int64_t size) {
  static thread_local std::vector<float> memory;
  if (int64_t(memory.size()) < size + 16) memory.resize(size + 16);
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  return memory.data() + (64 - address % 64) % 64 / 4;
}

// Writes the step's keys and values, then attends.
template <typename Pool>
void Run(const Step& step, const Variant& variant, Pool& pool, const Config& config = {}) {
  constexpr int64_t kWriteTokens = 32;
  if (step.num_tokens * step.num_kv_heads * step.head_dim <= config.inline_tokens_size) {
    variant.write_tokens(step, 0, step.num_tokens);
  } else {
    ParallelFor(pool, (step.num_tokens + kWriteTokens - 1) / kWriteTokens, [&](int64_t item) {
      const int64_t first = item * kWriteTokens;
      variant.write_tokens(step, first, std::min(first + kWriteTokens, step.num_tokens));
    });
  }

  const int64_t num_threads = std::max<int64_t>(pool.num_threads(), 1);
  const Plan plan = MakePlan(step, num_threads, config);
  // Parts of divided blocks, and how many of their pieces are still to come.
  std::vector<int64_t> parts_at(plan.blocks.size());
  std::unique_ptr<std::atomic<int64_t>[]> missing;
  int64_t parts_size = 0;
  if (plan.pieces.size() > plan.blocks.size()) {
    missing = std::make_unique<std::atomic<int64_t>[]>(plan.blocks.size());
    for (const Piece& piece : plan.pieces) ++missing[piece.block];
    for (size_t i = 0; i < plan.blocks.size(); ++i) {
      const Block& block = plan.blocks[i];
      parts_at[i] = parts_size;
      if (missing[i] > 1) {
        parts_size += (block.end_tile - block.first_tile) * variant.part_size(step, block.num_rows);
      }
    }
  }
  const std::unique_ptr<float[]> parts(parts_size ? new float[parts_size] : nullptr);

  const bool is_inline = plan.cost < config.inline_cost;
  const auto run_piece = [&](int64_t item) {
    const Piece& piece = plan.pieces[item];
    const Block& block = plan.blocks[piece.block];
    float* const memory = ThreadScratch(variant.scratch_size(step, block.num_rows));
    if (piece.first_tile == block.first_tile && piece.end_tile == block.end_tile) {
      const size_t after = item + 1;  // this thread's next one, most times
      variant.attend_block(
          step, block,
          after < plan.pieces.size() ? &plan.blocks[plan.pieces[after].block] : nullptr, memory);
      return;
    }
    float* const own = parts.get() + parts_at[piece.block];
    variant.attend_tiles(step, block, piece.first_tile, piece.end_tile, own, memory);
    if (missing[piece.block].fetch_sub(1) == 1) variant.fold_tiles(step, block, own, memory);
  };
  if (is_inline) {
    FlushDenormals flush;
    for (size_t item = 0; item < plan.pieces.size(); ++item) run_piece(item);
  } else {
    ParallelFor(pool, plan.pieces.size(), run_piece);
  }

  // Tokens of no row.
  const int64_t used = step.row_start[step.num_rows];
  const int64_t token_bytes = step.num_heads * step.head_dim * BytesOf(step.token_type);
  memset(step.out + used * token_bytes, 0, (step.num_tokens - used) * token_bytes);
}

}  // namespace halogen::paged_attention

#endif  // HALOGEN_PALLAS_KERNELS_PAGED_ATTENTION_CPU_PLAN_H_
