// One call of paged attention: where its arrays lie, and the pieces its work is cut into.
//
// Knows no instruction set and no XLA. A piece is what one thread does at a time; how a step is cut
// into pieces never changes a bit of the result.

#ifndef HALOGEN_PALLAS_KERNELS_PAGED_ATTENTION_CPU_STEP_H_
#define HALOGEN_PALLAS_KERNELS_PAGED_ATTENTION_CPU_STEP_H_

#include <algorithm>
#include <cstdint>

namespace halogen::paged_attention {

// Context slots per tile, counted from slot 0 of the sequence. Softmax is taken tile by tile and
// the tiles are folded in order, so this number is part of the result's bits.
constexpr int kTileSlots = 128;
// Score of a slot that is not seen; finite, so that a tile without a visible slot gives no NaN.
constexpr float kMasked = -1e30f;
constexpr float kLog2E = 1.44269504f;

enum class Type { kFloat32, kBFloat16, kFloat16 };

constexpr int64_t BytesOf(Type type) { return type == Type::kFloat32 ? 4 : 2; }

struct Step {
  const char* q;  // [T, N, H]
  const char* k;  // [T, K, H]
  const char* v;
  char* out;           // [T, N, H]
  char* keys;          // [L, B, P, K, H]
  char* values;        // [L, B, P, K, H]
  const float* sinks;  // [N], null = none
  const int32_t* row_start;     // [R + 1]
  const int32_t* context_len;   // [R]
  const int32_t* block_table;   // [R, W]
  const int32_t* slot_mapping;  // [T]
  Type token_type, cache_type;
  int64_t num_tokens, num_rows, num_heads, num_kv_heads, head_dim;
  int64_t num_blocks, block_size, table_width, layer;
  int64_t window;  // slots a token sees, itself included; 0 = all
  int64_t chunk;   // a token sees none before the multiple of this that it stands behind; 0 = all
  float scale, softcap;

  int64_t group() const { return num_heads / num_kv_heads; }
  // Position of flat token `token` of `row`.
  int64_t Position(int64_t row, int64_t token) const {
    return context_len[row] - row_start[row + 1] + token;
  }
  // First slot that the token at `position` sees.
  int64_t FirstSlot(int64_t position) const {
    const int64_t near = window > 0 && position >= window ? position - window + 1 : 0;
    return chunk > 0 ? std::max(near, position / chunk * chunk) : near;
  }
};

// Running softmax of several query vectors: the largest score so far (in units of log 2), the sum
// of exp2(score - top), and the sum of exp2(score - top) * value, [rows, stride].
struct Softmax {
  float* top;
  float* total;
  float* output;
};

// Consecutive tokens of a row, some key heads, all the tiles they see. A block is one piece, or, if
// few blocks have to feed many threads, one piece per run of tiles; then every tile's softmax is
// stored, and whoever ends last folds them.
struct Block {
  int64_t row, first_token, num_tokens, first_kv_head, num_kv_heads, first_tile, end_tile;
  int64_t num_rows;  // query vectors: tokens x key heads x queries per key head
};

// A tile of a block's context.
struct TileOfBlock {
  const Block* block;  // null = none
  int64_t tile;
};

}  // namespace halogen::paged_attention

#endif  // HALOGEN_PALLAS_KERNELS_PAGED_ATTENTION_CPU_STEP_H_
