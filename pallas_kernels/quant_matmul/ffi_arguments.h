// What XLA hands to a handler, in the terms of this folder: the instruction set that serves, types,
// stacks of packed matrices.

#ifndef HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_FFI_ARGUMENTS_H_
#define HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_FFI_ARGUMENTS_H_

#include <cstdint>
#include <string>

#include "pallas_kernels/quant_matmul/quant_matmul.h"
#include "xla/ffi/api/ffi.h"

namespace halogen {

// By name; "" = the fastest that this machine has.
inline const InstructionSet* Find(std::string_view name) {
  for (const InstructionSet* candidate : kInstructionSets) {
    if (!candidate->is_supported()) continue;
    if (name.empty() || name == candidate->name) return candidate;
  }
  return nullptr;
}

inline const InstructionSet* Fastest() {
  static const InstructionSet* const fastest = Find("");
  return fastest;
}

inline int TypeOf(xla::ffi::DataType type) {
  switch (type) {
    case xla::ffi::DataType::F32: return kF32;
    case xla::ffi::DataType::BF16: return kBf16;
    case xla::ffi::DataType::F16: return kF16;
    default: return -1;
  }
}

// A stack [L] of packed matrices [rows, columns], at one layer.
struct Stack {
  xla::ffi::Buffer<xla::ffi::U8> values;
  xla::ffi::Buffer<xla::ffi::S32> offsets, formats;

  xla::ffi::Error At(int64_t layer, int64_t rows, int64_t columns, const uint8_t** packed,
                int* format) const {
    const int64_t layers = static_cast<int64_t>(offsets.element_count());
    if (layer < 0 || layer >= layers || formats.element_count() != offsets.element_count()) {
      return xla::ffi::Error::InvalidArgument("quant_matmul: layer " + std::to_string(layer) +
                                         " of a stack of " + std::to_string(layers));
    }
    *format = formats.typed_data()[layer];
    if (*format < 0 || *format >= kNumFormats) {
      return xla::ffi::Error::InvalidArgument("quant_matmul: no format has the number " +
                                         std::to_string(*format));
    }
    const int64_t begin = int64_t{offsets.typed_data()[layer]} * kAlignment;
    const int64_t bytes = Ceil(rows, kRows) * GroupBytes(kFormats[*format], columns);
    if (begin < 0 || begin + bytes > static_cast<int64_t>(values.element_count())) {
      return xla::ffi::Error::InvalidArgument("quant_matmul: layer " + std::to_string(layer) +
                                         " lies outside of the packed bytes");
    }
    *packed = values.typed_data() + begin;
    return xla::ffi::Error::Success();
  }
};

}  // namespace halogen

#endif  // HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_FFI_ARGUMENTS_H_
