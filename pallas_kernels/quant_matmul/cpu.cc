// XLA's handlers: x times packed matrices at a layer of their stacks, and rows of a packed matrix.
// Weights are read where they lie; a call copies and allocates nothing.

#include <array>
#include <cstdint>
#include <string>

#include "pallas_kernels/quant_matmul/ffi_arguments.h"
#include "pallas_kernels/quant_matmul/multiply.h"
#include "xla/ffi/api/ffi.h"

namespace halogen {
namespace {

namespace ffi = xla::ffi;

// Arguments: x [T, K], layer, then values, offsets, formats of each stack. Results: [T, N] each.
// parts: int8 codes that an element of x is rounded to, 0 = it stays float32.
ffi::Error Multiply(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Buffer<ffi::S32> layer,
                    ffi::RemainingArgs stacks, ffi::RemainingRets results, int32_t parts,
                    std::string_view instruction_set) {
  const InstructionSet* isa = instruction_set.empty() ? Fastest() : Find(instruction_set);
  const int num_products = static_cast<int>(results.size());
  if (isa == nullptr || TypeOf(x.element_type()) < 0 || x.dimensions().size() != 2 ||
      parts < 0 || parts > 2 || num_products > kMaxProducts || stacks.size() != results.size() * 3) {
    return ffi::Error::InvalidArgument("quant_matmul: arguments that no kernel serves");
  }
  const int64_t num_tokens = x.dimensions()[0], columns = x.dimensions()[1];
  Product products[kMaxProducts];
  for (int i = 0; i < num_products; ++i) {
    auto values = stacks.get<ffi::Buffer<ffi::U8>>(i * 3);
    auto offsets = stacks.get<ffi::Buffer<ffi::S32>>(i * 3 + 1);
    auto formats = stacks.get<ffi::Buffer<ffi::S32>>(i * 3 + 2);
    auto result = results.get<ffi::AnyBuffer>(i);
    if (!values || !offsets || !formats || !result || TypeOf((*result)->element_type()) < 0 ||
        (*result)->dimensions().size() != 2 || (*result)->dimensions()[0] != num_tokens) {
      return ffi::Error::InvalidArgument("quant_matmul: a stack or result of the wrong type");
    }
    Product& product = products[i];
    product.rows = (*result)->dimensions()[1];
    product.out = (*result)->untyped_data();
    product.out_type = TypeOf((*result)->element_type());
    ffi::Error error = Stack{*values, *offsets, *formats}.At(
        layer.typed_data()[0], product.rows, columns, &product.packed, &product.format);
    if (error.failure()) return error;
  }
  MultiplyAll(*isa, pool, x.untyped_data(), TypeOf(x.element_type()), parts, num_tokens, columns,
              products, num_products);
  return ffi::Error::Success();
}

// Rows row_ids [T] of one packed matrix; ids outside of it are clamped. rows = N.
ffi::Error Take(ffi::ThreadPool pool, ffi::Buffer<ffi::S32> row_ids, ffi::Buffer<ffi::U8> values,
                ffi::Buffer<ffi::S32> offsets, ffi::Buffer<ffi::S32> formats,
                ffi::Result<ffi::AnyBuffer> result, int64_t rows) {
  if (TypeOf(result->element_type()) < 0 || result->dimensions().size() != 2) {
    return ffi::Error::InvalidArgument("quant_take: a result of the wrong type");
  }
  const int64_t columns = result->dimensions()[1];
  const uint8_t* packed;
  int format;
  ffi::Error error = Stack{values, offsets, formats}.At(0, rows, columns, &packed, &format);
  if (error.failure()) return error;
  const int type = TypeOf(result->element_type());
  constexpr int64_t kTogether = 16;
  const int64_t count = static_cast<int64_t>(row_ids.element_count());
  ParallelFor(pool, Ceil(count, kTogether), [&](int64_t item) {
    thread_local ThreadMemory own;
    float* row = reinterpret_cast<float*>(own.AtLeast(columns * 4));
    for (int64_t t = item * kTogether; t < std::min(count, (item + 1) * kTogether); ++t) {
      const int64_t id = std::clamp<int64_t>(row_ids.typed_data()[t], 0, rows - 1);
      DequantizeRow(kFormats[format], packed, id, columns, row);
      if (type == kF32) {
        std::memcpy(static_cast<float*>(result->untyped_data()) + t * columns, row, columns * 4);
        continue;
      }
      uint16_t* out = static_cast<uint16_t*>(result->untyped_data()) + t * columns;
      for (int64_t k = 0; k < columns; ++k) {
        out[k] = type == kBf16 ? FloatToBf16(row[k]) : FloatToHalf(row[k]);
      }
    }
  });
  return ffi::Error::Success();
}

}  // namespace

#define HALOGEN_EXPORT extern "C" __attribute__((visibility("default")))

// The name back where this machine can run that instruction set, else null; "" = the fastest.
HALOGEN_EXPORT const char* HalogenInstructionSet(const char* name) {
  const InstructionSet* found = Find(name);
  return found == nullptr ? nullptr : found->name;
}

HALOGEN_EXPORT XLA_FFI_Error* HalogenQuantMatmul(XLA_FFI_CallFrame* frame);
HALOGEN_EXPORT XLA_FFI_Error* HalogenQuantTake(XLA_FFI_CallFrame* frame);

XLA_FFI_DEFINE_HANDLER_SYMBOL(HalogenQuantMatmul, Multiply,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int32_t>("parts")
                                  .Attr<std::string_view>("instruction_set"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(HalogenQuantTake, Take,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("rows"));

}  // namespace halogen
