// Zeros without touching them: whole pages are given back to the system, which hands out zeroed
// ones when they are first used. Where it does not do that, they are written.

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "xla/ffi/api/ffi.h"

namespace halogen {
namespace {

namespace ffi = xla::ffi;

constexpr uintptr_t kPage = 2 << 20;  // a huge page, which spares lookups of addresses

// Fills [begin, end), both multiples of kPage. The memory is the process's own: XLA has it from
// malloc.
void FillPages(char* begin, char* end) {
#if defined(__linux__)
  if (madvise(begin, end - begin, MADV_DONTNEED) == 0) {
    madvise(begin, end - begin, MADV_HUGEPAGE);  // a wish
    return;
  }
#endif
  std::memset(begin, 0, end - begin);
}

ffi::Error Zeros(ffi::Result<ffi::AnyBuffer> result) {
  char* const begin = static_cast<char*>(result->untyped_data());
  char* const end = begin + result->size_bytes();
  const uintptr_t skipped = (kPage - reinterpret_cast<uintptr_t>(begin) % kPage) % kPage;
  char* const first = begin + std::min<uintptr_t>(skipped, end - begin);
  char* const last = first + (end - first) / kPage * kPage;
  std::memset(begin, 0, first - begin);
  if (first < last) FillPages(first, last);
  std::memset(last, 0, end - last);
  return ffi::Error::Success();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* HalogenZeros(
    XLA_FFI_CallFrame* frame);

XLA_FFI_DEFINE_HANDLER_SYMBOL(HalogenZeros, Zeros, ffi::Ffi::Bind().Ret<ffi::AnyBuffer>());

}  // namespace halogen
