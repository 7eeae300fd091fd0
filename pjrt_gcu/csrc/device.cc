#include "device.h"

#include <map>
#include <mutex>

#include "call.h"
#include "driver.h"
#include "entries.h"
#include "error.h"
#include "memory.h"
#include "named_value.h"

namespace gcu {
namespace {

int DescriptionId(void* description) {
  Call<PJRT_DeviceDescription_Id_Args> call;
  call.args.device_description = description;
  DestroyError(Below().PJRT_DeviceDescription_Id(&call.args));
  return call.args.id;
}

// Texts live as long as the process: the caller keeps pointers to them.
const std::string& TextOf(int id) {
  static std::mutex mutex;
  static auto* texts = new std::map<int, std::string>;
  std::lock_guard<std::mutex> lock(mutex);
  std::string& text = (*texts)[id];
  if (text.empty()) text = "GcuDevice(id=" + std::to_string(id) + ")";
  return text;
}

void* Kind(PJRT_DeviceDescription_Kind_Args* args) {
  const std::string& kind = CurrentDriver()->facts().kind;
  args->device_kind = const_cast<char*>(kind.data());
  args->device_kind_size = kind.size();
  return nullptr;
}

void* DebugString(PJRT_DeviceDescription_DebugString_Args* args) {
  const std::string& text = TextOf(DescriptionId(args->device_description));
  args->debug_string = const_cast<char*>(text.data());
  args->debug_string_size = text.size();
  return nullptr;
}

void* ToString(PJRT_DeviceDescription_ToString_Args* args) {
  const std::string& text = TextOf(DescriptionId(args->device_description));
  args->to_string = const_cast<char*>(text.data());
  args->to_string_size = text.size();
  return nullptr;
}

void* Attributes(PJRT_DeviceDescription_Attributes_Args* args) {
  static const auto* simulated =
      new PJRT_NamedValue(SimulatedAttribute(CurrentDriver()->facts().is_simulated));
  args->attributes = const_cast<PJRT_NamedValue*>(simulated);
  args->num_attributes = 1;
  return nullptr;
}

void* MemoryStats(PJRT_Device_MemoryStats_Args* args) {
  const Ledger* ledger = LedgerOfDevice(args->device);
  if (ledger == nullptr) {
    return MakeError(PJRT_Error_Code_INVALID_ARGUMENT, "the device belongs to no open client");
  }
  const LedgerState state = ledger->state();
  args->bytes_in_use = state.in_use;
  args->peak_bytes_in_use = state.peak;
  args->peak_bytes_in_use_is_set = true;
  args->num_allocs = state.num_allocations;
  args->num_allocs_is_set = true;
  args->largest_alloc_size = state.largest;
  args->largest_alloc_size_is_set = true;
  args->bytes_limit = state.limit;
  args->bytes_limit_is_set = true;
  args->bytes_reserved_is_set = false;
  args->peak_bytes_reserved_is_set = false;
  args->bytes_reservable_limit_is_set = false;
  args->largest_free_block_bytes_is_set = false;
  args->pool_bytes_is_set = false;
  args->peak_pool_bytes_is_set = false;
  return nullptr;
}

void* ClearMemoryStats(PJRT_Device_ClearMemoryStats_Args* args) {
  if (Ledger* ledger = LedgerOfDevice(args->device)) ledger->ClearPeak();
  return nullptr;
}

}  // namespace

int DeviceId(void* device) {
  Call<PJRT_Device_GetDescription_Args> call;
  call.args.device = device;
  if (void* error = Below().PJRT_Device_GetDescription(&call.args)) {
    DestroyError(error);
    return -1;
  }
  return DescriptionId(call.args.device_description);
}

void InstallDeviceEntries(PJRT_Api& table) {
  table.PJRT_DeviceDescription_Kind = Kind;
  table.PJRT_DeviceDescription_DebugString = DebugString;
  table.PJRT_DeviceDescription_ToString = ToString;
  table.PJRT_DeviceDescription_Attributes = Attributes;
  table.PJRT_Device_MemoryStats = MemoryStats;
  table.PJRT_Device_ClearMemoryStats = ClearMemoryStats;
}

}  // namespace gcu
