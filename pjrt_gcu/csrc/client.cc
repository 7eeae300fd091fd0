// Clients: options, devices, names.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "call.h"
#include "device.h"
#include "driver.h"
#include "entries.h"
#include "error.h"
#include "memory.h"
#include "named_value.h"

namespace gcu {
namespace {

constexpr int64_t kMaxDevices = 256;

// What a client may be created with.
struct ClientOptions {
  int64_t num_devices = 1;
  int64_t memory_limit_bytes = 0;  // per device, 0 = the device's memory
};

// An integer of the environment; what is no number counts as 0 and is refused by the check.
int64_t EnvironmentOr(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoll(value);
}

void* BadOption(const std::string& text) {
  return MakeError(PJRT_Error_Code_INVALID_ARGUMENT, "GCU client option " + text);
}

void* ReadOption(const PJRT_NamedValue& value, ClientOptions& options) {
  const std::string name = NameOf(value);
  const bool is_integer = value.type == PJRT_NamedValue_kInt64;
  if (name == "driver" && value.type == PJRT_NamedValue_kString) {
    const std::string wanted(static_cast<const char*>(value._anon5.string_value),
                             value.value_size);
    if (wanted == CurrentDriver()->name()) return nullptr;
    return BadOption("driver is '" + wanted + "', but the open driver is '" +
                     CurrentDriver()->name() + "'; name it before JAX loads the plugin");
  }
  if (name == "num_devices" && is_integer) {
    options.num_devices = value._anon5.int64_value;
  } else if (name == "memory_limit_bytes" && is_integer) {
    options.memory_limit_bytes = value._anon5.int64_value;
  } else {
    return BadOption("'" + name +
                     "' is not known or has a wrong type; there are driver (string), num_devices "
                     "and memory_limit_bytes (integers)");
  }
  return nullptr;
}

void* ReadOptions(const PJRT_Client_Create_Args* args, ClientOptions& options) {
  options.num_devices = EnvironmentOr("GCU_SIM_DEVICES", options.num_devices);
  options.memory_limit_bytes = EnvironmentOr("GCU_SIM_MEMORY_BYTES", options.memory_limit_bytes);
  auto* values = static_cast<const PJRT_NamedValue*>(args->create_options);
  for (size_t i = 0; i < args->num_options; ++i) {
    if (void* error = ReadOption(values[i], options)) return error;
  }
  if (options.num_devices < 1 || options.num_devices > kMaxDevices) {
    return BadOption("num_devices is " + std::to_string(options.num_devices) + ", use 1 to " +
                     std::to_string(kMaxDevices));
  }
  if (options.memory_limit_bytes < 0) {
    return BadOption("memory_limit_bytes is negative, use 0 for the device's own memory");
  }
  if (options.memory_limit_bytes == 0) {
    options.memory_limit_bytes = CurrentDriver()->facts().memory_bytes;
  }
  return nullptr;
}

void* Create(PJRT_Client_Create_Args* args) {
  ClientOptions options;
  if (void* error = ReadOptions(args, options)) return error;
  std::vector<PJRT_NamedValue> below = CurrentDriver()->ClientOptions(options.num_devices);
  void* const create_options = args->create_options;
  const size_t num_options = args->num_options;
  args->create_options = below.data();
  args->num_options = below.size();
  void* error = Below().PJRT_Client_Create(args);
  args->create_options = create_options;
  args->num_options = num_options;
  if (error != nullptr) return error;

  Call<PJRT_Client_AddressableDevices_Args> call;
  call.args.client = args->client;
  if (void* failure = Below().PJRT_Client_AddressableDevices(&call.args)) return failure;
  void** devices = static_cast<void**>(call.args.addressable_devices);
  for (size_t i = 0; i < call.args.num_addressable_devices; ++i) {
    AddDevice(devices[i], DeviceId(devices[i]), options.memory_limit_bytes);
  }
  return nullptr;
}

void* PlatformName(PJRT_Client_PlatformName_Args* args) {
  args->platform_name = const_cast<char*>(kPlatform.data());
  args->platform_name_size = kPlatform.size();
  return nullptr;
}

void* TopologyPlatformName(PJRT_TopologyDescription_PlatformName_Args* args) {
  args->platform_name = const_cast<char*>(kPlatform.data());
  args->platform_name_size = kPlatform.size();
  return nullptr;
}

// "Enflame S60 (simulated), driver sim" and what the driver's own client says.
void* PlatformVersion(PJRT_Client_PlatformVersion_Args* args) {
  if (void* error = Below().PJRT_Client_PlatformVersion(args)) return error;
  static const auto* text = new std::string(
      CurrentDriver()->facts().kind + ", driver " + CurrentDriver()->name() + ", on " +
      std::string(static_cast<const char*>(args->platform_version), args->platform_version_size));
  args->platform_version = const_cast<char*>(text->data());
  args->platform_version_size = text->size();
  return nullptr;
}

}  // namespace

void InstallClientEntries(PJRT_Api& table) {
  table.PJRT_Client_Create = Create;
  table.PJRT_Client_PlatformName = PlatformName;
  table.PJRT_Client_PlatformVersion = PlatformVersion;
  table.PJRT_TopologyDescription_PlatformName = TopologyPlatformName;
}

}  // namespace gcu
