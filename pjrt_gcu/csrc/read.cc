// Reads: arrays on their way to the host. Each is a transfer and is counted, also where the driver
// might hand out its memory.
#include <algorithm>
#include <cstring>

#include "call.h"
#include "counters.h"
#include "driver.h"
#include "entries.h"
#include "error.h"
#include "memory.h"

namespace gcu {
namespace {

// Up to here the host copies faster itself than a thread of the driver wakes up: 50 to 90
// microseconds on 2 busy x86-64 cores.
constexpr int64_t kSmallBytes = 1 << 16;

void CountRead(int64_t bytes) {
  Count().device_to_host++;
  Count().device_to_host_bytes += bytes;
}

// Asks the table below something that may fail; false = it did.
template <class Args>
bool Ask(void* (*entry)(Args*), Args* args) {
  void* error = entry(args);
  DestroyError(error);
  return error == nullptr;
}

// Whether the elements lie in the order that the host wants them in.
bool IsInOrder(void* buffer, const PJRT_Buffer_MemoryLayout* wanted) {
  if (wanted == nullptr) return true;  // as they lie
  Call<PJRT_Buffer_GetMemoryLayout_Args> call;
  call.args.buffer = buffer;
  if (!Ask(Below().PJRT_Buffer_GetMemoryLayout, &call.args)) return false;
  if (call.args.layout.type != PJRT_Buffer_MemoryLayout_Type_Tiled) return false;
  if (wanted->type != PJRT_Buffer_MemoryLayout_Type_Tiled) return false;
  const PJRT_Buffer_MemoryLayout_Tiled& own = call.args.layout._anon2.tiled;
  const PJRT_Buffer_MemoryLayout_Tiled& other = wanted->_anon2.tiled;
  if (own.num_tiles != 0 || other.num_tiles != 0) return false;
  auto* first = static_cast<const int64_t*>(own.minor_to_major);
  return own.minor_to_major_size == other.minor_to_major_size &&
         std::equal(first, first + own.minor_to_major_size,
                    static_cast<const int64_t*>(other.minor_to_major));
}

// The event of an array that is complete, null where it is not or is an error.
void* ReadyEvent(void* buffer) {
  Call<PJRT_Buffer_ReadyEvent_Args> ready;
  ready.args.buffer = buffer;
  if (!Ask(Below().PJRT_Buffer_ReadyEvent, &ready.args)) return nullptr;
  Call<PJRT_Event_IsReady_Args> is_ready;
  is_ready.args.event = ready.args.event;
  Call<PJRT_Event_Error_Args> failure;
  failure.args.event = ready.args.event;
  if (Ask(Below().PJRT_Event_IsReady, &is_ready.args) && is_ready.args.is_ready &&
      Ask(Below().PJRT_Event_Error, &failure.args)) {
    return ready.args.event;
  }
  Call<PJRT_Event_Destroy_Args> destroy;
  destroy.args.event = ready.args.event;
  DestroyError(Below().PJRT_Event_Destroy(&destroy.args));
  return nullptr;
}

// A small array that is complete, of a device whose memory is the host's, is copied at once. False
// = it is another.
bool CopyNow(PJRT_Buffer_ToHostBuffer_Args* args, int64_t bytes) {
  if (!CurrentDriver()->facts().is_simulated || bytes > kSmallBytes) return false;
  if (args->dst_size != static_cast<size_t>(bytes)) return false;
  if (!IsInOrder(args->src, static_cast<PJRT_Buffer_MemoryLayout*>(args->host_layout))) {
    return false;
  }
  Call<PJRT_Buffer_UnsafePointer_Args> pointer;
  pointer.args.buffer = args->src;
  void* event = ReadyEvent(args->src);
  if (event == nullptr) return false;
  if (!Ask(Below().PJRT_Buffer_UnsafePointer, &pointer.args)) {
    Call<PJRT_Event_Destroy_Args> destroy;
    destroy.args.event = event;
    DestroyError(Below().PJRT_Event_Destroy(&destroy.args));
    return false;
  }
  std::memcpy(args->dst, reinterpret_cast<const void*>(pointer.args.buffer_pointer), bytes);
  args->event = event;
  return true;
}

void* ToHostBuffer(PJRT_Buffer_ToHostBuffer_Args* args) {
  const bool is_question = args->dst == nullptr;  // how many bytes the host needs
  const int64_t bytes = is_question ? 0 : BufferBytes(args->src);
  if (is_question || !CopyNow(args, bytes)) {
    if (void* error = Below().PJRT_Buffer_ToHostBuffer(args)) return error;
  }
  if (!is_question) CountRead(bytes);
  return nullptr;
}

void* CopyRawToHost(PJRT_Buffer_CopyRawToHost_Args* args) {
  if (void* error = Below().PJRT_Buffer_CopyRawToHost(args)) return error;
  CountRead(args->transfer_size);
  return nullptr;
}

void* CopyRawToHostFuture(PJRT_Buffer_CopyRawToHostFuture_Args* args) {
  if (void* error = Below().PJRT_Buffer_CopyRawToHostFuture(args)) return error;
  CountRead(args->transfer_size);
  return nullptr;
}

// A device's memory is not the host's.
void* IsOnCpu(PJRT_Buffer_IsOnCpu_Args* args) {
  args->is_on_cpu = false;
  return nullptr;
}

}  // namespace

void InstallReadEntries(PJRT_Api& table) {
  table.PJRT_Buffer_ToHostBuffer = ToHostBuffer;
  table.PJRT_Buffer_CopyRawToHost = CopyRawToHost;
  table.PJRT_Buffer_CopyRawToHostFuture = CopyRawToHostFuture;
  table.PJRT_Buffer_IsOnCpu = IsOnCpu;
}

}  // namespace gcu
