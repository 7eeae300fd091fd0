// The native attention kernel against a naive double loop, in every instruction set of this
// machine; made to be run under the address and undefined-behaviour sanitizers.
//
// Each case lies in arrays of exactly its size, so that a step outside is seen. It is run whole on
// one thread, cut finely over three threads, and in small blocks: the bits must be equal.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "pallas_kernels/paged_attention/cpu_half.h"
#include "pallas_kernels/paged_attention/cpu_plan.h"
#include "tests/pallas_kernels/thread_pool.h"

namespace halogen::paged_attention {
namespace {

float ToFloat(Type type, const char* at) {
  if (type == Type::kFloat32) {
    float value;
    memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t half;
  memcpy(&half, at, sizeof half);
  if (type == Type::kFloat16) return FromHalf(half);
  const uint32_t bits = uint32_t(half) << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Numbers that every type holds exactly: multiples of 1/32 up to 4.
std::vector<char> Numbers(Type type, int64_t count, std::mt19937& random) {
  std::vector<char> bytes(count * BytesOf(type));
  for (int64_t i = 0; i < count; ++i) {
    const float value = (int(random() % 257) - 128) / 32.0f;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint16_t half = type == Type::kFloat16 ? ToHalf(value) : uint16_t(bits >> 16);
    memcpy(&bytes[i * BytesOf(type)],
           type == Type::kFloat32 ? static_cast<const void*>(&value) : &half, BytesOf(type));
  }
  return bytes;
}

struct Case {
  int64_t num_heads, num_kv_heads, head_dim, block_size;
  std::vector<std::pair<int64_t, int64_t>> rows;  // slots before, new tokens
  Type token_type, cache_type;
  int64_t window;
  float softcap;
  bool has_sinks;
};

void Fail(const char* what, const Variant& variant, size_t index, double worst) {
  printf("case %zu, %s: %s (%g)\n", index, variant.name, what, worst);
  exit(1);
}

void Check(const Case& test, size_t index) {
  std::mt19937 random(unsigned(index) + 1);
  std::vector<int32_t> row_start{0}, context_len, table, slots;
  int64_t width = 1, num_blocks = 2;
  for (const auto& [before, fresh] : test.rows) {
    const int64_t blocks = (before + fresh + test.block_size - 1) / test.block_size;
    width = std::max(width, blocks);
    num_blocks += blocks;
  }
  std::vector<int32_t> free_blocks(num_blocks);
  for (int64_t i = 0; i < num_blocks; ++i) free_blocks[i] = int32_t(i);
  std::shuffle(free_blocks.begin(), free_blocks.end(), random);
  for (const auto& [before, fresh] : test.rows) {
    const size_t first = table.size();
    // Entries past the context are ignored, whatever they hold.
    for (int64_t i = 0; i < width; ++i) table.push_back(i % 2 ? -7 : 1 << 30);
    for (int64_t i = 0; i * test.block_size < before + fresh; ++i) {
      table[first + i] = free_blocks.back();
      free_blocks.pop_back();
    }
    for (int64_t i = before; i < before + fresh; ++i) {
      slots.push_back(int32_t(table[first + i / test.block_size] * test.block_size +
                              i % test.block_size));
    }
    row_start.push_back(int32_t(slots.size()));
    context_len.push_back(int32_t(before + fresh));
  }
  row_start.push_back(row_start.back());  // a row and a token that stand for nothing
  context_len.push_back(0);
  table.resize(table.size() + width);
  slots.push_back(INT32_MAX);

  const int64_t num_tokens = int64_t(slots.size()), num_layers = 2, layer = 1;
  const int64_t kv_size = test.num_kv_heads * test.head_dim;
  const int64_t q_size = test.num_heads * test.head_dim;
  const int64_t cache_size = num_layers * num_blocks * test.block_size * kv_size;
  const auto q = Numbers(test.token_type, num_tokens * q_size, random);
  const auto k = Numbers(test.token_type, num_tokens * kv_size, random);
  const auto v = Numbers(test.token_type, num_tokens * kv_size, random);
  const auto old_keys = Numbers(test.cache_type, cache_size, random);
  const auto old_values = Numbers(test.cache_type, cache_size, random);
  std::vector<float> sinks(test.num_heads);
  for (size_t i = 0; i < sinks.size(); ++i) sinks[i] = float(i) / 2 - 1;

  for (const Variant* variant : RunnableVariants()) {
    std::vector<char> first_out, keys, values;
    const Config configs[] = {{}, {}, {}};
    Config fine, small;
    fine.inline_cost = 0, fine.pieces_per_thread = 50, fine.inline_tokens_size = 0;
    small.block_rows = 5, small.min_block_rows = 1;
    const Config* const all[] = {&configs[0], &fine, &small};
    for (int run = 0; run < 3; ++run) {
      std::vector<char> out(q.size(), 99);
      keys = old_keys, values = old_values;
      Step step = {};
      step.q = q.data(), step.k = k.data(), step.v = v.data(), step.out = out.data();
      step.keys = keys.data(), step.values = values.data();
      step.sinks = test.has_sinks ? sinks.data() : nullptr;
      step.row_start = row_start.data(), step.context_len = context_len.data();
      step.block_table = table.data(), step.slot_mapping = slots.data();
      step.token_type = test.token_type, step.cache_type = test.cache_type;
      step.num_tokens = num_tokens, step.num_rows = int64_t(context_len.size());
      step.num_heads = test.num_heads, step.num_kv_heads = test.num_kv_heads;
      step.head_dim = test.head_dim, step.num_blocks = num_blocks;
      step.block_size = test.block_size, step.table_width = width, step.layer = layer;
      step.window = test.window, step.scale = 0.03f, step.softcap = test.softcap;
      Pool pool(run == 1 ? 3 : 1);
      Run(step, *variant, pool, *all[run]);
      if (run == 0) first_out = out;
      if (out != first_out) Fail("the bits depend on how work was cut", *variant, index, run);
    }

    // Oracle: head by head in double.
    double worst = 0;
    const auto cached = [&](const std::vector<char>& cache, int64_t row, int64_t slot,
                            int64_t at) {
      const int64_t block = table[row * width + slot / test.block_size];
      const int64_t base = (layer * num_blocks + block) * test.block_size + slot % test.block_size;
      return ToFloat(test.cache_type, &cache[(base * kv_size + at) * BytesOf(test.cache_type)]);
    };
    for (size_t row = 0; row < test.rows.size(); ++row) {
      for (int64_t token = row_start[row]; token < row_start[row + 1]; ++token) {
        const int64_t position = test.rows[row].first + token - row_start[row];
        const int64_t first =
            test.window && position >= test.window ? position - test.window + 1 : 0;
        for (int64_t head = 0; head < test.num_heads; ++head) {
          const int64_t kv_at = head / (test.num_heads / test.num_kv_heads) * test.head_dim;
          const auto token_value = [&](const std::vector<char>& from, int64_t at) {
            return double(ToFloat(test.token_type, &from[at * BytesOf(test.token_type)]));
          };
          double top = test.has_sinks ? sinks[head] : -1e300;
          std::vector<double> scores;
          for (int64_t slot = first; slot <= position; ++slot) {
            double score = 0;
            for (int64_t i = 0; i < test.head_dim; ++i) {
              score += token_value(q, token * q_size + head * test.head_dim + i) *
                       cached(keys, int64_t(row), slot, kv_at + i);
            }
            score *= 0.03f;
            if (test.softcap > 0) score = test.softcap * std::tanh(score / test.softcap);
            scores.push_back(score);
            top = std::max(top, score);
          }
          double total = test.has_sinks ? std::exp(sinks[head] - top) : 0;
          for (double score : scores) total += std::exp(score - top);
          for (int64_t i = 0; i < test.head_dim; ++i) {
            double want = 0;
            for (size_t slot = 0; slot < scores.size(); ++slot) {
              want += std::exp(scores[slot] - top) / total *
                      cached(values, int64_t(row), first + int64_t(slot), kv_at + i);
            }
            const double got =
                token_value(first_out, token * q_size + head * test.head_dim + i);
            worst = std::max(worst, std::fabs(got - want));
          }
        }
        for (int64_t i = 0; i < kv_size; ++i) {
          const float want = ToFloat(test.token_type,
                                     &k[(token * kv_size + i) * BytesOf(test.token_type)]);
          if (cached(keys, int64_t(row), position, i) != want) {
            Fail("a key was not written", *variant, index, want);
          }
        }
      }
    }
    const double tolerance[] = {1e-5, 2e-2, 2e-3};
    if (!(worst <= tolerance[int(test.token_type)])) Fail("wrong", *variant, index, worst);
    for (int64_t i = (num_tokens - 1) * q_size; i < num_tokens * q_size; ++i) {
      if (ToFloat(test.token_type, &first_out[i * BytesOf(test.token_type)]) != 0) {
        Fail("a token of no row is not zero", *variant, index, 0);
      }
    }
    if (memcmp(keys.data(), old_keys.data(), keys.size() / 2) != 0) {
      Fail("another layer changed", *variant, index, 0);
    }
  }
}

}  // namespace
}  // namespace halogen::paged_attention

int main() {
  using halogen::paged_attention::Case;
  using halogen::paged_attention::Type;
  constexpr Type kF32 = Type::kFloat32, kBF16 = Type::kBFloat16, kF16 = Type::kFloat16;
  const Case cases[] = {
      {3, 1, 64, 16, {{300, 1}}, kF32, kF32, 0, 0, false},
      {9, 3, 64, 4, {{0, 37}, {128, 1}, {5, 9}, {0, 1}}, kF32, kF32, 0, 0, false},
      {9, 3, 64, 4, {{0, 37}, {131, 1}, {126, 9}}, kF32, kBF16, 0, 0, true},
      {4, 1, 256, 16, {{250, 7}, {255, 1}}, kF32, kF16, 100, 0, false},
      {6, 2, 10, 3, {{0, 140}, {129, 2}, {7, 1}}, kF32, kF32, 9, 2.5f, true},
      {14, 2, 34, 16, {{200, 1}, {0, 33}}, kBF16, kBF16, 133, 0, false},
      {5, 5, 128, 1, {{127, 3}, {255, 1}}, kF16, kF16, 0, 30.0f, true},
      {8, 1, 80, 32, {{500, 1}, {10, 70}}, kF32, kF32, 1, 0, false},
      {2, 1, 2, 7, {{0, 1}, {1, 1}, {40, 40}}, kF32, kF32, 0, 0, false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) Check(cases[i], i);
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const float value = halogen::paged_attention::FromHalf(uint16_t(half));
    if (value == value && halogen::paged_attention::ToHalf(value) != half) {
      printf("float16 %x does not come back\n", half);
      return 1;
    }
  }
  for (const auto* variant : halogen::paged_attention::RunnableVariants()) {
    printf("%s: ok\n", variant->name);
  }
  return 0;
}
