// x [T, K] times several packed matrices, on the threads of a pool: activations are prepared once,
// then items of (row groups, tiles of tokens) are multiplied in any order.

#ifndef HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_MULTIPLY_H_
#define HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_MULTIPLY_H_

#include <algorithm>
#include <cstdint>
#include <memory>

#include "pallas_kernels/parallel.h"
#include "pallas_kernels/quant_matmul/quant_matmul.h"

namespace halogen {

constexpr int kMaxProducts = 8;                   // of one x
constexpr int64_t kPrepareAlone = 1 << 15;        // elements of x; more are worth a second thread
constexpr int64_t kTileRangeBytes = 256 << 10;    // of prepared activations: they stay in L2
constexpr int64_t kItemBytes = 64 << 10;          // of weights at most, when tokens are few
constexpr int64_t kItemsPerThread = 8;            // so many that nobody waits long for the last one

// Memory of one thread that is kept between calls, aligned to 64 bytes.
class ThreadMemory {
 public:
  char* AtLeast(int64_t bytes) {
    if (bytes > size_) {
      size_ = bytes + bytes / 4;
      memory_.reset(new char[size_ + kAlignment]);
    }
    const auto address = reinterpret_cast<uintptr_t>(memory_.get());
    return memory_.get() + (kAlignment - address % kAlignment) % kAlignment;
  }

 private:
  std::unique_ptr<char[]> memory_;
  int64_t size_ = 0;
};

// The row groups of one product, cut into items.
struct ItemRange {
  int64_t first;  // item
  int64_t groups_per_item;
};

// Elements of T of rows [first, first + 32) as the tiles want them, [columns][32].
template <typename T>
void InterleaveRows(const T* matrix, int64_t first, int64_t rows, int64_t columns, T* out) {
  constexpr int64_t kTogether = 64 / sizeof(T);  // columns: a cache line of a row
  const int64_t count = std::min(kRows, rows - first);
  for (int64_t k = 0; k < columns; k += kTogether) {
    const int64_t width = std::min(kTogether, columns - k);
    for (int64_t r = 0; r < kRows; ++r) {
      const T* from = matrix + (first + r) * columns + k;
      T* to = out + k * kRows + r;
      for (int64_t i = 0; i < width; ++i) to[i * kRows] = r < count ? from[i] : T{0};
    }
  }
}

// Groups [begin, end) of a plain matrix, interleaved in the thread's memory.
inline void Interleave(Product& product, int64_t columns, int64_t begin, int64_t end) {
  thread_local ThreadMemory memory;
  const int64_t group_bytes = GroupBytes(kFormats[product.format], columns);
  char* packed = memory.AtLeast((end - begin) * group_bytes);
  for (int64_t g = begin; g < end; ++g) {
    char* group = packed + (g - begin) * group_bytes;
    if (product.format == kF32) {
      InterleaveRows(static_cast<const uint32_t*>(product.plain), g * kRows, product.rows, columns,
                     reinterpret_cast<uint32_t*>(group));
    } else {
      InterleaveRows(static_cast<const uint16_t*>(product.plain), g * kRows, product.rows, columns,
                     reinterpret_cast<uint16_t*>(group));
    }
  }
  product.packed = reinterpret_cast<const uint8_t*>(packed);
  product.first_group = begin;
}

template <typename Pool>
void MultiplyAll(const InstructionSet& isa, Pool& pool, const void* x, int x_type,
                 int parts, int64_t num_tokens, int64_t columns, const Product* products,
                 int num_products) {
  if (num_tokens == 0) return;
  Activations activations;
  activations.parts = parts;
  activations.num_tokens = num_tokens;
  activations.columns = columns;
  for (int i = 0; i < num_products; ++i) {
    const Format& format = kFormats[products[i].format];
    const bool is_exact = format.is_float() || parts == 0;
    activations.needs_values |= is_exact;
    activations.needs_codes |= !is_exact;
    if (!is_exact && format.zero) activations.needs_zero[ZeroIndex(format.zero)] = true;
  }
  thread_local ThreadMemory shared;
  const int64_t bytes = activations.Place(isa.max_tile[parts]);
  activations.data = shared.AtLeast(bytes);
  const int64_t tiles = activations.num_tiles;
  auto prepare = [&](int64_t tile) { isa.prepare(activations, x, x_type, tile); };
  if (num_tokens * columns <= kPrepareAlone) {
    FlushDenormals flush;
    for (int64_t tile = 0; tile < tiles; ++tile) prepare(tile);
  } else {
    ParallelFor(pool, tiles, prepare);
  }

  const int64_t ranges = std::min(tiles, Ceil(bytes, kTileRangeBytes));
  ItemRange items[kMaxProducts];
  int64_t num_items = 0;
  for (int i = 0; i < num_products; ++i) {
    const int64_t group_bytes = GroupBytes(kFormats[products[i].format], columns);
    items[i].first = num_items;
    // Many tokens: one group is work enough. Few: enough bytes to make claiming an item cheap.
    const int64_t most = kItemBytes / (group_bytes * std::min<int64_t>(tiles, 4));
    const int64_t fair = products[i].groups() / (pool.num_threads() * kItemsPerThread);
    items[i].groups_per_item = std::max<int64_t>(1, std::min(most, fair));
    num_items += ranges * Ceil(products[i].groups(), items[i].groups_per_item);
  }
  ParallelFor(pool, num_items, [&](int64_t item) {
    thread_local ThreadMemory own;
    int i = num_products - 1;
    while (items[i].first > item) --i;
    const int64_t parts = Ceil(products[i].groups(), items[i].groups_per_item);
    const int64_t range = (item - items[i].first) / parts, part = (item - items[i].first) % parts;
    const int64_t begin = part * items[i].groups_per_item;
    const int64_t end = std::min(begin + items[i].groups_per_item, products[i].groups());
    Product product = products[i];
    if (product.plain != nullptr) Interleave(product, columns, begin, end);
    isa.multiply(product, activations, begin, end, range * tiles / ranges,
                 (range + 1) * tiles / ranges, Scratch(own.AtLeast(Scratch::Bytes(columns)), columns));
  });
}

// One row of a packed matrix as float32 [K], exactly the numbers that the file means.
inline void DequantizeRow(const Format& format, const uint8_t* packed, int64_t row, int64_t columns,
                          float* out) {
  const uint8_t* group = packed + row / kRows * GroupBytes(format, columns);
  const uint8_t* codes = group + ScaleBytes(format, columns);
  const int64_t r = row % kRows, supers = Ceil(columns, kSuperBlock);
  auto half_at = [](const uint8_t* base, int64_t index) {
    uint16_t half;
    std::memcpy(&half, base + index * 2, 2);
    return HalfToFloat(half);
  };
  if (format.is_float()) {
    for (int64_t k = 0; k < columns; ++k) {
      const uint8_t* at = codes + (k * kRows + r) * (format.bits / 8);
      if (format.bits == 32) {
        std::memcpy(out + k, at, 4);
      } else {
        uint16_t half;
        std::memcpy(&half, at, 2);
        out[k] = format.name[0] == 'B' ? Bf16ToFloat(half) : HalfToFloat(half);
      }
    }
    return;
  }
  for (int64_t b = 0; b < Ceil(columns, kBlock); ++b) {
    float scale[2], minimum = 0;
    const int64_t super = b * kBlock / kSuperBlock;
    switch (format.scales) {
      case Scales::kNone:
        break;
      case Scales::kChannel:
        std::memcpy(scale, group + r * 4, 4);
        break;
      case Scales::kHalf:
        scale[0] = half_at(group, b * kRows + r);
        break;
      case Scales::kHalfMinimum:
        scale[0] = half_at(group, b * 2 * kRows + r);
        minimum = half_at(group, (b * 2 + 1) * kRows + r);
        break;
      case Scales::kSuperMinimum: {
        const uint8_t* fine = group + supers * 4 * kRows + b * 2 * kRows + r;
        scale[0] = half_at(group, super * 2 * kRows + r) * static_cast<float>(fine[0]);
        minimum = 0.0f - half_at(group, (super * 2 + 1) * kRows + r) *
                             static_cast<float>(fine[kRows]);
        break;
      }
      case Scales::kSuperHalf: {
        const uint8_t* fine = group + supers * 2 * kRows + b * 2 * kRows + r;
        const float outer = half_at(group, super * kRows + r);
        scale[0] = outer * static_cast<float>(static_cast<int8_t>(fine[0]));
        scale[1] = outer * static_cast<float>(static_cast<int8_t>(fine[kRows]));
        break;
      }
    }
    if (!format.is_half()) scale[1] = scale[0];
    const uint8_t* block = codes + b * kQuad * format.bits + r * 4;
    const int64_t width = std::min(kBlock, columns - b * kBlock);
    for (int64_t k = 0; k < width; ++k) {
      const int64_t j = k / 4, i = k % 4;
      int code;
      if (format.bits == 8) {
        code = block[j * kQuad + i];
      } else {
        code = (block[(j & 3) * kQuad + i] >> (j < 4 ? 0 : 4)) & 0x0f;
        if (format.bits == 5) code |= ((block[4 * kQuad + i] >> j) & 1) << 4;
        if (format.bits == 6) {
          code |= ((block[(4 + j / 4) * kQuad + i] >> (2 * (j & 3))) & 3) << 4;
        }
      }
      const float product = scale[k / 16] * static_cast<float>(code - format.zero);
      out[b * kBlock + k] = format.has_minimum() ? product + minimum : product;
    }
  }
}

}  // namespace halogen

#endif  // HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_MULTIPLY_H_
