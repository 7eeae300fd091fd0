// The gated delta rule as an XLA FFI handler: rows in parallel, the tokens of a row one after the
// other.
//
// A head's state is cut into tiles of columns, which do not need each other; a tile stays in the
// first-level cache while its row's tokens pass. Every column is added up in the order of its rows,
// without contraction, so a result depends neither on the batch or on how a sequence was cut into
// steps, nor on the instruction set.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "pallas_kernels/parallel.h"
#include "xla/ffi/api/ffi.h"

namespace halogen::gated_delta {
namespace {

namespace ffi = xla::ffi;

// 16 columns: one register of AVX-512, two of AVX2, four of SSE.
typedef float Lanes __attribute__((vector_size(64)));
constexpr int64_t kLanes = 16;
constexpr int64_t kColumns = 2 * kLanes;  // of a tile: 128 rows of it are 16 KiB

// A row of a tile. The bare vector type is aligned as the instruction set at hand would have it.
struct alignas(64) Line {
  Lanes lanes[2];
};

// A row of the step, one head, some columns of its state.
struct Tile {
  const float* q;      // of the row's first token, stride key_stride
  const float* k;      // likewise
  const float* v;      // stride value_stride
  const float* decay;  // stride decay_stride
  const float* beta;   // stride num_heads
  float* out;          // stride value_stride
  const float* before;  // first row of the tile in the state; null = zeros
  float* after;         // likewise; null = kept nowhere
  int64_t num_tokens, num_columns;
};

struct Sizes {
  int64_t key_dim, value_dim;  // I and J, rows and columns of a state
  int64_t key_stride, value_stride, decay_stride, num_heads;
  bool has_decay_per_row;
};

__attribute__((always_inline)) inline void Load(const float* from, int64_t count, Line& line) {
  line = Line{};
  std::memcpy(&line, from, count * sizeof(float));
}

__attribute__((always_inline)) inline void Compute(const Sizes& sizes, const Tile& tile,
                                                   Line* state) {
  const int64_t rows = sizes.key_dim, columns = tile.num_columns;
  for (int64_t i = 0; i < rows; ++i) {
    if (tile.before == nullptr) {
      state[i] = Line{};
    } else {
      Load(tile.before + i * sizes.value_dim, columns, state[i]);
    }
  }
  for (int64_t token = 0; token < tile.num_tokens; ++token) {
    const float* q = tile.q + token * sizes.key_stride;
    const float* k = tile.k + token * sizes.key_stride;
    const float* decay = tile.decay + token * sizes.decay_stride;
    const float beta = tile.beta[token * sizes.num_heads];
    Lanes known0 = {}, known1 = {};
    for (int64_t i = 0; i < rows; ++i) {
      const float kept = decay[sizes.has_decay_per_row ? i : 0];
      const Lanes left = state[i].lanes[0] * kept, right = state[i].lanes[1] * kept;
      state[i] = Line{left, right};
      known0 += k[i] * left;
      known1 += k[i] * right;
    }
    Line value;
    Load(tile.v + token * sizes.value_stride, columns, value);
    const Lanes correction0 = beta * (value.lanes[0] - known0);
    const Lanes correction1 = beta * (value.lanes[1] - known1);
    Lanes out0 = {}, out1 = {};
    for (int64_t i = 0; i < rows; ++i) {
      const Lanes left = state[i].lanes[0] + k[i] * correction0;
      const Lanes right = state[i].lanes[1] + k[i] * correction1;
      state[i] = Line{left, right};
      out0 += q[i] * left;
      out1 += q[i] * right;
    }
    const Line out = {out0, out1};
    std::memcpy(tile.out + token * sizes.value_stride, &out, columns * sizeof(float));
  }
  if (tile.after == nullptr) return;
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(tile.after + i * sizes.value_dim, state + i, columns * sizeof(float));
  }
}

using Kernel = void (*)(const Sizes&, const Tile&, Line*);

void ComputePlain(const Sizes& sizes, const Tile& tile, Line* state) {
  Compute(sizes, tile, state);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void ComputeAvx2(const Sizes& sizes, const Tile& tile,
                                                 Line* state) {
  Compute(sizes, tile, state);
}

__attribute__((target("avx512f"))) void ComputeAvx512(const Sizes& sizes, const Tile& tile,
                                                      Line* state) {
  Compute(sizes, tile, state);
}
#endif

Kernel Fastest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return ComputeAvx512;
  if (__builtin_cpu_supports("avx2")) return ComputeAvx2;
#endif
  return ComputePlain;
}

using Floats = ffi::Buffer<ffi::F32>;
using Ints = ffi::Buffer<ffi::S32>;

ffi::Error GatedDelta(ffi::ThreadPool threads, Floats q, Floats k, Floats v, Floats decay,
                      Floats beta, Floats states, Ints layer, Ints row_start, Ints state_from,
                      Ints state_to, ffi::Result<Floats> out, ffi::Result<Floats> new_states) {
  const auto key_shape = k.dimensions(), value_shape = v.dimensions();
  const auto pool_shape = states.dimensions();
  float* pool = states.typed_data();
  if (pool != new_states->typed_data()) {
    return ffi::Error::Internal(
        "gated_delta: the states were copied; their operand must alias its result");
  }
  if (key_shape.size() != 3 || value_shape.size() != 3 || pool_shape.size() != 5 ||
      q.element_count() != k.element_count() || pool_shape[2] != value_shape[1] ||
      pool_shape[3] != key_shape[2] || pool_shape[4] != value_shape[2] ||
      value_shape[1] % key_shape[1] != 0) {
    return ffi::Error::InvalidArgument("gated_delta: operands whose shapes do not fit");
  }
  Sizes sizes;
  sizes.key_dim = key_shape[2], sizes.value_dim = value_shape[2];
  sizes.num_heads = value_shape[1];
  sizes.key_stride = key_shape[1] * sizes.key_dim;
  sizes.value_stride = sizes.num_heads * sizes.value_dim;
  const int64_t decay_dim = decay.dimensions()[2];
  sizes.has_decay_per_row = decay_dim > 1;
  sizes.decay_stride = sizes.num_heads * decay_dim;
  const int64_t num_tokens = key_shape[0], num_slots = pool_shape[1];
  const int64_t num_rows = state_to.element_count(), group = sizes.num_heads / key_shape[1];
  const int64_t head_size = sizes.key_dim * sizes.value_dim;
  const int64_t slot_size = sizes.num_heads * head_size;
  const int64_t at = layer.typed_data()[0];
  const int32_t* start = row_start.typed_data();
  if (at < 0 || at >= pool_shape[0] || start[0] != 0) {
    return ffi::Error::InvalidArgument("gated_delta: layer " + std::to_string(at) + " of " +
                                       std::to_string(pool_shape[0]));
  }
  for (int64_t row = 0; row < num_rows; ++row) {
    if (start[row + 1] < start[row] || start[row + 1] > num_tokens) {
      return ffi::Error::InvalidArgument("gated_delta: row " + std::to_string(row) +
                                         " ends at token " + std::to_string(start[row + 1]));
    }
  }
  pool += at * num_slots * slot_size;
  const auto slot_at = [&](const Ints& slots, int64_t row) {
    const int64_t slot = slots.typed_data()[row];
    return slot >= 0 && slot < num_slots ? pool + slot * slot_size : nullptr;
  };
  std::memset(out->typed_data() + start[num_rows] * sizes.value_stride, 0,
              (num_tokens - start[num_rows]) * sizes.value_stride * sizeof(float));

  static const Kernel kernel = Fastest();
  const int64_t tiles = (sizes.value_dim + kColumns - 1) / kColumns;
  ParallelFor(threads, num_rows * sizes.num_heads * tiles, [&](int64_t item) {
    const int64_t row = item / (sizes.num_heads * tiles);
    const int64_t head = item / tiles % sizes.num_heads, column = item % tiles * kColumns;
    float* after = slot_at(state_to, row);
    if (after == nullptr && start[row + 1] == start[row]) return;
    const float* before = slot_at(state_from, row);
    const int64_t offset = head * head_size + column, token = start[row];
    Tile tile;
    tile.q = q.typed_data() + token * sizes.key_stride + head / group * sizes.key_dim;
    tile.k = k.typed_data() + token * sizes.key_stride + head / group * sizes.key_dim;
    tile.v = v.typed_data() + token * sizes.value_stride + head * sizes.value_dim + column;
    tile.decay = decay.typed_data() + token * sizes.decay_stride + head * decay_dim;
    tile.beta = beta.typed_data() + token * sizes.num_heads + head;
    tile.out = out->typed_data() + token * sizes.value_stride + head * sizes.value_dim + column;
    tile.before = before == nullptr ? nullptr : before + offset;
    tile.after = after == nullptr ? nullptr : after + offset;
    tile.num_tokens = start[row + 1] - token;
    tile.num_columns = std::min(kColumns, sizes.value_dim - column);
    thread_local std::vector<Line> scratch;
    scratch.resize(sizes.key_dim);
    kernel(sizes, tile, scratch.data());
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace halogen::gated_delta

// The library hides its other symbols.
extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* halogen_gated_delta(
    XLA_FFI_CallFrame* call_frame);

XLA_FFI_DEFINE_HANDLER_SYMBOL(halogen_gated_delta, halogen::gated_delta::GatedDelta,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()   // q
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()   // k
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()   // v
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()   // decay
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()   // beta
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()   // states
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()   // layer
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()   // row_start
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()   // state_from
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()   // state_to
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>()   // out
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>());  // states
