#include "memory.h"

#include <deque>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "call.h"
#include "error.h"

namespace gcu {
namespace {

struct Charge {
  Ledger* ledger;
  int64_t bytes;
};

// Ledgers are never freed: a buffer may outlive its client, and a process makes few clients.
struct State {
  std::mutex mutex;
  std::deque<Ledger> ledgers;
  std::unordered_map<int, std::vector<Ledger*>> by_id;
  std::unordered_map<const void*, Ledger*> by_device;
  std::unordered_map<const void*, Ledger*> by_memory;
  std::unordered_map<const void*, Charge> buffers;
};

State& Memory() {
  static State* state = new State;  // outlives static destructors of other libraries
  return *state;
}

Ledger* Find(const std::unordered_map<const void*, Ledger*>& ledgers, const void* key) {
  auto found = ledgers.find(key);
  return found == ledgers.end() ? nullptr : found->second;
}

bool IsHostMemory(void* memory) {
  Call<PJRT_Memory_Kind_Args> call;
  call.args.memory = memory;
  if (void* error = Below().PJRT_Memory_Kind(&call.args)) {
    DestroyError(error);
    return false;
  }
  const std::string kind(static_cast<const char*>(call.args.kind), call.args.kind_size);
  return kind.find("host") != std::string::npos;
}

std::vector<void*> MemoriesOf(const void* device) {
  Call<PJRT_Device_AddressableMemories_Args> call;
  call.args.device = const_cast<void*>(device);
  if (void* error = Below().PJRT_Device_AddressableMemories(&call.args)) {
    DestroyError(error);
    return {};
  }
  void** first = static_cast<void**>(call.args.memories);
  return std::vector<void*>(first, first + call.args.num_memories);
}

}  // namespace

Ledger* LedgerOfDevice(const void* device) {
  State& state = Memory();
  std::lock_guard<std::mutex> lock(state.mutex);
  return Find(state.by_device, device);
}

Ledger* LedgerOfMemory(const void* memory) {
  State& state = Memory();
  std::lock_guard<std::mutex> lock(state.mutex);
  return Find(state.by_memory, memory);
}

void AddDevice(const void* device, int id, int64_t limit) {
  const std::vector<void*> memories = MemoriesOf(device);
  State& state = Memory();
  std::lock_guard<std::mutex> lock(state.mutex);
  Ledger* ledger = &state.ledgers.emplace_back(id, limit);
  state.by_id[id].push_back(ledger);
  state.by_device[device] = ledger;
  for (void* memory : memories) {
    // An address may be one that a client which is gone had.
    state.by_memory[memory] = IsHostMemory(memory) ? nullptr : ledger;
  }
}

void SetMemoryLimit(int device_id, int64_t limit) {
  State& state = Memory();
  std::lock_guard<std::mutex> lock(state.mutex);
  for (Ledger* ledger : state.by_id[device_id]) ledger->SetLimit(limit);
}

void TrackBuffer(const void* buffer, Ledger* ledger, int64_t bytes) {
  ledger->CountAllocation(bytes);
  State& state = Memory();
  std::lock_guard<std::mutex> lock(state.mutex);
  state.buffers[buffer] = Charge{ledger, bytes};
}

int64_t TakeBuffer(const void* buffer) {
  State& state = Memory();
  std::lock_guard<std::mutex> lock(state.mutex);
  auto found = state.buffers.find(buffer);
  if (found == state.buffers.end()) return 0;
  const int64_t bytes = found->second.bytes;
  state.buffers.erase(found);
  return bytes;
}

void ForgetBuffer(const void* buffer) {
  State& state = Memory();
  std::lock_guard<std::mutex> lock(state.mutex);
  auto found = state.buffers.find(buffer);
  if (found == state.buffers.end()) return;
  found->second.ledger->Adjust(-found->second.bytes);
  state.buffers.erase(found);
}

void* AdoptBuffer(void* buffer) {
  Call<PJRT_Buffer_Memory_Args> call;
  call.args.buffer = buffer;
  if (void* error = Below().PJRT_Buffer_Memory(&call.args)) return error;
  Ledger* ledger = LedgerOfMemory(call.args.memory);
  if (ledger == nullptr) return nullptr;
  const int64_t bytes = BufferBytes(buffer);
  ledger->Adjust(bytes);
  TrackBuffer(buffer, ledger, bytes);
  return nullptr;
}

int64_t BufferBytes(void* buffer) {
  Call<PJRT_Buffer_OnDeviceSizeInBytes_Args> call;
  call.args.buffer = buffer;
  if (void* error = Below().PJRT_Buffer_OnDeviceSizeInBytes(&call.args)) {
    DestroyError(error);
    return 0;
  }
  return static_cast<int64_t>(call.args.on_device_size_in_bytes);
}

bool IsDeleted(void* buffer) {
  Call<PJRT_Buffer_IsDeleted_Args> call;
  call.args.buffer = buffer;
  if (void* error = Below().PJRT_Buffer_IsDeleted(&call.args)) {
    DestroyError(error);
    return false;
  }
  return call.args.is_deleted;
}

int64_t DenseBytes(uint32_t type, const int64_t* dims, size_t num_dims) {
  int64_t size = 1;  // of an element; types below a byte take one
  switch (type) {
    case PJRT_Buffer_Type_S16:
    case PJRT_Buffer_Type_U16:
    case PJRT_Buffer_Type_F16:
    case PJRT_Buffer_Type_BF16:
      size = 2;
      break;
    case PJRT_Buffer_Type_S32:
    case PJRT_Buffer_Type_U32:
    case PJRT_Buffer_Type_F32:
      size = 4;
      break;
    case PJRT_Buffer_Type_S64:
    case PJRT_Buffer_Type_U64:
    case PJRT_Buffer_Type_F64:
    case PJRT_Buffer_Type_C64:
      size = 8;
      break;
    case PJRT_Buffer_Type_C128:
      size = 16;
      break;
    default:
      break;
  }
  for (size_t i = 0; i < num_dims; ++i) size *= dims[i];
  return size;
}

}  // namespace gcu
