// The plugin's entry: the table that the framework sees is a copy of the driver's with the entries
// replaced that this plugin answers itself. An entry that the driver lacks refuses with its name.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "call.h"
#include "driver.h"
#include "entries.h"
#include "error.h"
#include "named_value.h"

#define GCU_EXPORT extern "C" __attribute__((visibility("default")))

namespace gcu {
namespace {

std::string missing_driver;  // why there is no driver, when there is none

std::string EnvironmentOr(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

// The driver that was opened before, else the one that the environment names.
const Driver* DriverForTable() {
  if (CurrentDriver() == nullptr) {
    missing_driver =
        OpenDriver(EnvironmentOr("GCU_DRIVER", "sim"), EnvironmentOr("GCU_SIM_PLUGIN", ""));
  }
  return CurrentDriver();
}

// One function per entry, so that the message can name it.
#define GCU_REFUSAL(name)                                                                    \
  void* Refuse_##name(void*) {                                                               \
    return missing_driver.empty()                                                            \
               ? MakeError(PJRT_Error_Code_UNIMPLEMENTED,                                    \
                           #name " is not implemented by the driver of the GCU plugin")      \
               : MakeError(PJRT_Error_Code_FAILED_PRECONDITION, "GCU: " + missing_driver);   \
  }
PJRT_API_ENTRIES(GCU_REFUSAL)
#undef GCU_REFUSAL

template <class Entry>
void FillIfNull(Entry& entry, void* (*refusal)(void*)) {
  if (entry == nullptr) entry = reinterpret_cast<Entry>(refusal);
}

// A copy of the driver's table, as long as the longer of its and ours.
class Table {
 public:
  explicit Table(const Driver* driver)
      : room_(std::max(sizeof(PJRT_Api), driver ? driver->api().struct_size : 0)) {
    PJRT_Api& api = *reinterpret_cast<PJRT_Api*>(room_.data());
    if (driver != nullptr) {
      std::memcpy(room_.data(), &driver->api(), driver->api().struct_size);
    } else {
      api.struct_size = sizeof(PJRT_Api);
      api.pjrt_api_version = PJRT_Api_Version{sizeof(PJRT_Api_Version), nullptr, 0, 114};
    }
#define GCU_FILL(name) FillIfNull(api.name, Refuse_##name);
    PJRT_API_ENTRIES(GCU_FILL)
#undef GCU_FILL
    below_ = room_;
    api.struct_size = std::max(api.struct_size, sizeof(PJRT_Api));
    InstallErrorEntries(api);
    if (driver == nullptr) return;
    InstallPluginEntries(api);
    InstallClientEntries(api);
    InstallDeviceEntries(api);
    InstallBufferEntries(api);
    InstallReadEntries(api);
    InstallTransferEntries(api);
    InstallProgramEntries(api);
  }
  const PJRT_Api& api() const { return *reinterpret_cast<const PJRT_Api*>(room_.data()); }
  // The driver's entries, refusals in place of those that it lacks.
  const PJRT_Api& below() const { return *reinterpret_cast<const PJRT_Api*>(below_.data()); }

 private:
  std::vector<unsigned char> room_;
  std::vector<unsigned char> below_;
};

const Table& TheTable() {
  static const Table* table = new Table(DriverForTable());
  return *table;
}

// The driver's attributes and whether the device is simulated.
void* Attributes(PJRT_Plugin_Attributes_Args* args) {
  if (void* error = Below().PJRT_Plugin_Attributes(args)) return error;
  static const std::vector<PJRT_NamedValue>* attributes = [&] {
    auto* first = static_cast<PJRT_NamedValue*>(args->attributes);
    auto* all = new std::vector<PJRT_NamedValue>(first, first + args->num_attributes);
    all->push_back(SimulatedAttribute(CurrentDriver()->facts().is_simulated));
    return all;
  }();
  args->attributes = const_cast<PJRT_NamedValue*>(attributes->data());
  args->num_attributes = attributes->size();
  return nullptr;
}

}  // namespace

const PJRT_Api& Below() { return TheTable().below(); }

void InstallPluginEntries(PJRT_Api& table) { table.PJRT_Plugin_Attributes = Attributes; }

}  // namespace gcu

GCU_EXPORT const PJRT_Api* GetPjrtApi() { return &gcu::TheTable().api(); }
