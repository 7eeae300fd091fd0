// Paged attention as an XLA FFI handler: checks its operands, then runs on XLA's own threads.
//
// The caches come in as operands that are aliased to results, so they are updated in place; a call
// whose cache was copied instead is an error, not a slow success.

#include <cstring>
#include <optional>
#include <string>

#include "pallas_kernels/paged_attention/cpu_plan.h"
#include "pallas_kernels/paged_attention/cpu_step.h"
#include "pallas_kernels/paged_attention/cpu_variants.h"
#include "xla/ffi/api/ffi.h"

namespace halogen::paged_attention {
namespace {

namespace ffi = xla::ffi;

const Variant& Fastest() {
  static const Variant& variant = *RunnableVariants().front();
  return variant;
}

std::optional<Type> TypeOf(const ffi::AnyBuffer& buffer) {
  switch (buffer.element_type()) {
    case ffi::DataType::F32:
      return Type::kFloat32;
    case ffi::DataType::BF16:
      return Type::kBFloat16;
    case ffi::DataType::F16:
      return Type::kFloat16;
    default:
      return std::nullopt;
  }
}

char* Data(const ffi::AnyBuffer& buffer) { return static_cast<char*>(buffer.untyped_data()); }

using Ints = ffi::Buffer<ffi::S32>;

// With v and values the same buffers as k and keys, the latents of MLA are attended.
ffi::Error Attend(ffi::ThreadPool threads, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                  ffi::AnyBuffer keys, ffi::AnyBuffer values, Ints layer, Ints row_start,
                  Ints context_len, Ints block_table, Ints slot_mapping, int64_t window,
                  int64_t chunk, const float* sinks, ffi::AnyBuffer out, ffi::AnyBuffer new_keys,
                  ffi::AnyBuffer new_values, float scale, float softcap) {
  const std::optional<Type> token_type = TypeOf(q), cache_type = TypeOf(keys);
  if (!token_type || !cache_type) {
    return ffi::Error::InvalidArgument(
        "paged_attention: queries and cache must be float32, bfloat16 or float16");
  }
  if (Data(keys) != Data(new_keys) || Data(values) != Data(new_values)) {
    return ffi::Error::Internal(
        "paged_attention: the cache was copied; its operand must alias its result");
  }
  const auto token_shape = q.dimensions();
  const auto cache_shape = keys.dimensions();
  Step step = {};
  step.q = Data(q), step.k = Data(k), step.v = Data(v), step.out = Data(out);
  step.keys = Data(keys), step.values = Data(values);
  step.sinks = sinks;
  step.row_start = row_start.typed_data(), step.context_len = context_len.typed_data();
  step.block_table = block_table.typed_data(), step.slot_mapping = slot_mapping.typed_data();
  step.token_type = *token_type, step.cache_type = *cache_type;
  step.num_tokens = token_shape[0], step.num_heads = token_shape[1];
  step.head_dim = token_shape[2];
  step.num_rows = context_len.element_count();
  step.num_blocks = cache_shape[1], step.block_size = cache_shape[2];
  step.num_kv_heads = cache_shape[3];
  step.table_width = block_table.dimensions()[1];
  step.layer = layer.typed_data()[0];
  step.window = window, step.chunk = chunk;
  step.scale = scale, step.softcap = softcap;

  if (step.layer < 0 || step.layer >= cache_shape[0]) {
    return ffi::Error::InvalidArgument("paged_attention: layer " + std::to_string(step.layer) +
                                       " of a cache of " + std::to_string(cache_shape[0]));
  }
  const int64_t max_context = step.table_width * step.block_size;
  for (int64_t row = 0; row < step.num_rows; ++row) {
    const int64_t first = step.row_start[row], end = step.row_start[row + 1];
    const int64_t context_len = step.context_len[row];
    if (first < 0 || end < first || end > step.num_tokens || context_len < end - first ||
        context_len > max_context) {
      return ffi::Error::InvalidArgument(
          "paged_attention: row " + std::to_string(row) + " has tokens " + std::to_string(first) +
          " to " + std::to_string(end) + " of " + std::to_string(step.num_tokens) +
          ", context length " + std::to_string(context_len) + " and blocks for " +
          std::to_string(max_context));
    }
  }
  Run(step, Fastest(), threads);
  return ffi::Error::Success();
}

ffi::Error PagedAttention(ffi::ThreadPool threads, ffi::AnyBuffer q, ffi::AnyBuffer k,
                          ffi::AnyBuffer v, ffi::AnyBuffer keys, ffi::AnyBuffer values, Ints layer,
                          Ints row_start, Ints context_len, Ints block_table, Ints slot_mapping,
                          Ints window, ffi::Buffer<ffi::F32> sinks,
                          ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> new_keys,
                          ffi::Result<ffi::AnyBuffer> new_values, float scale, float softcap,
                          int64_t chunk) {
  return Attend(threads, q, k, v, keys, values, layer, row_start, context_len, block_table,
                slot_mapping, window.typed_data()[0], chunk,
                sinks.element_count() ? sinks.typed_data() : nullptr, *out, *new_keys, *new_values,
                scale, softcap);
}

ffi::Error LatentAttention(ffi::ThreadPool threads, ffi::AnyBuffer q, ffi::AnyBuffer latents,
                           ffi::AnyBuffer cache, Ints layer, Ints row_start, Ints context_len,
                           Ints block_table, Ints slot_mapping, ffi::Result<ffi::AnyBuffer> out,
                           ffi::Result<ffi::AnyBuffer> new_cache, float scale) {
  return Attend(threads, q, latents, latents, cache, cache, layer, row_start, context_len,
                block_table, slot_mapping, 0, 0, nullptr, *out, *new_cache, *new_cache, scale, 0.0f);
}

}  // namespace
}  // namespace halogen::paged_attention

// The library hides its other symbols.
extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* halogen_paged_attention(
    XLA_FFI_CallFrame* call_frame);
extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* halogen_latent_attention(
    XLA_FFI_CallFrame* call_frame);

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    halogen_paged_attention, halogen::paged_attention::PagedAttention,
    xla::ffi::Ffi::Bind()
        .Ctx<xla::ffi::ThreadPool>()
        .Arg<xla::ffi::AnyBuffer>()                // q
        .Arg<xla::ffi::AnyBuffer>()                // k
        .Arg<xla::ffi::AnyBuffer>()                // v
        .Arg<xla::ffi::AnyBuffer>()                // cache keys
        .Arg<xla::ffi::AnyBuffer>()                // cache values
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()    // layer
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()    // row_start
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()    // context_len
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()    // block_table
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()    // slot_mapping
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()    // window
        .Arg<xla::ffi::Buffer<xla::ffi::F32>>()    // sinks, or none of them
        .Ret<xla::ffi::AnyBuffer>()                // output
        .Ret<xla::ffi::AnyBuffer>()                // cache keys
        .Ret<xla::ffi::AnyBuffer>()                // cache values
        .Attr<float>("scale")
        .Attr<float>("softcap")
        .Attr<int64_t>("chunk"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    halogen_latent_attention, halogen::paged_attention::LatentAttention,
    xla::ffi::Ffi::Bind()
        .Ctx<xla::ffi::ThreadPool>()
        .Arg<xla::ffi::AnyBuffer>()                // q
        .Arg<xla::ffi::AnyBuffer>()                // latents
        .Arg<xla::ffi::AnyBuffer>()                // cache
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()    // layer
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()    // row_start
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()    // context_len
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()    // block_table
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()    // slot_mapping
        .Ret<xla::ffi::AnyBuffer>()                // output
        .Ret<xla::ffi::AnyBuffer>()                // cache
        .Attr<float>("scale"));
