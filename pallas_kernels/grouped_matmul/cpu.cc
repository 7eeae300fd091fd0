// XLA's handlers: rows sorted by group, each times its group's matrix. Groups are multiplied one
// after the other, each by all threads; matrices of groups without rows are not touched.

#include <cstdint>
#include <cstring>
#include <string>

#include "pallas_kernels/quant_matmul/ffi_arguments.h"
#include "pallas_kernels/quant_matmul/multiply.h"
#include "xla/ffi/api/ffi.h"

namespace halogen {
namespace {

namespace ffi = xla::ffi;

// x [M, K], group_sizes [E] -> result [M, N]; rows past the last group become zero. matrix(group,
// product) says where a group's matrix lies. parts: as of quant_matmul.
template <typename Matrix>
ffi::Error MultiplyGroups(ffi::ThreadPool& pool, const ffi::AnyBuffer& x,
                          const ffi::Buffer<ffi::S32>& group_sizes, ffi::AnyBuffer& result,
                          int parts, const Matrix& matrix) {
  const InstructionSet* isa = Fastest();
  const int x_type = TypeOf(x.element_type()), out_type = TypeOf(result.element_type());
  if (isa == nullptr || x_type < 0 || out_type < 0 || x.dimensions().size() != 2 ||
      result.dimensions().size() != 2 || result.dimensions()[0] != x.dimensions()[0] ||
      parts < 0 || parts > 2) {
    return ffi::Error::InvalidArgument("grouped_matmul: arguments that no kernel serves");
  }
  const int64_t num_rows = x.dimensions()[0], columns = x.dimensions()[1];
  const int64_t out_columns = result.dimensions()[1];
  const int64_t x_bytes = columns * (x_type == kF32 ? 4 : 2);
  const int64_t out_bytes = out_columns * (out_type == kF32 ? 4 : 2);
  char* out = static_cast<char*>(result.untyped_data());
  int64_t row = 0;
  for (int64_t group = 0; group < static_cast<int64_t>(group_sizes.element_count()); ++group) {
    const int64_t size = group_sizes.typed_data()[group];
    if (size < 0 || row + size > num_rows) {
      return ffi::Error::InvalidArgument("grouped_matmul: group " + std::to_string(group) + " of " +
                                         std::to_string(size) + " rows after " +
                                         std::to_string(row) + " of " + std::to_string(num_rows));
    }
    if (size == 0) continue;
    Product product;
    product.rows = out_columns;
    product.out = out + row * out_bytes;
    product.out_type = out_type;
    ffi::Error error = matrix(group, product);
    if (error.failure()) return error;
    MultiplyAll(*isa, pool, static_cast<const char*>(x.untyped_data()) + row * x_bytes, x_type,
                parts, size, columns, &product, 1);
    row += size;
  }
  std::memset(out + row * out_bytes, 0, (num_rows - row) * out_bytes);
  return ffi::Error::Success();
}

// weight [L, E, N, K] of floats.
ffi::Error MultiplyPlain(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Buffer<ffi::S32> group_sizes,
                         ffi::Buffer<ffi::S32> layer, ffi::AnyBuffer weight,
                         ffi::Result<ffi::AnyBuffer> result) {
  const auto shape = weight.dimensions();
  const int type = TypeOf(weight.element_type());
  const int64_t at = layer.typed_data()[0];
  if (type < 0 || shape.size() != 4 || at < 0 || at >= shape[0] ||
      shape[1] != static_cast<int64_t>(group_sizes.element_count()) ||
      shape[2] != result->dimensions().back() || shape[3] != x.dimensions().back()) {
    return ffi::Error::InvalidArgument("grouped_matmul: a weight that does not fit, or layer " +
                                       std::to_string(at) + " outside of it");
  }
  const int64_t matrix_bytes = shape[2] * shape[3] * (type == kF32 ? 4 : 2);
  const char* first = static_cast<const char*>(weight.untyped_data()) + at * shape[1] * matrix_bytes;
  return MultiplyGroups(pool, x, group_sizes, *result, 0, [&](int64_t group, Product& product) {
    product.format = type;
    product.plain = first + group * matrix_bytes;
    return ffi::Error::Success();
  });
}

// A stack of L * E packed matrices [N, K].
ffi::Error MultiplyPacked(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Buffer<ffi::S32> group_sizes,
                          ffi::Buffer<ffi::S32> layer, ffi::Buffer<ffi::U8> values,
                          ffi::Buffer<ffi::S32> offsets, ffi::Buffer<ffi::S32> formats,
                          ffi::Result<ffi::AnyBuffer> result, int32_t parts) {
  const Stack stack{values, offsets, formats};
  const int64_t first = int64_t{layer.typed_data()[0]} *
                        static_cast<int64_t>(group_sizes.element_count());
  return MultiplyGroups(pool, x, group_sizes, *result, parts, [&](int64_t group, Product& product) {
    return stack.At(first + group, product.rows, x.dimensions()[1], &product.packed,
                    &product.format);
  });
}

}  // namespace

#define HALOGEN_EXPORT extern "C" __attribute__((visibility("default")))

HALOGEN_EXPORT XLA_FFI_Error* HalogenGroupedMatmul(XLA_FFI_CallFrame* frame);
HALOGEN_EXPORT XLA_FFI_Error* HalogenGroupedQuantMatmul(XLA_FFI_CallFrame* frame);

XLA_FFI_DEFINE_HANDLER_SYMBOL(HalogenGroupedMatmul, MultiplyPlain,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()         // x
                                  .Arg<ffi::Buffer<ffi::S32>>()  // group_sizes
                                  .Arg<ffi::Buffer<ffi::S32>>()  // layer
                                  .Arg<ffi::AnyBuffer>()         // weight
                                  .Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(HalogenGroupedQuantMatmul, MultiplyPacked,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()         // x
                                  .Arg<ffi::Buffer<ffi::S32>>()  // group_sizes
                                  .Arg<ffi::Buffer<ffi::S32>>()  // layer
                                  .Arg<ffi::Buffer<ffi::U8>>()   // values
                                  .Arg<ffi::Buffer<ffi::S32>>()  // offsets
                                  .Arg<ffi::Buffer<ffi::S32>>()  // formats
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int32_t>("parts"));

}  // namespace halogen
