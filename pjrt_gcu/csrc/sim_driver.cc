// The simulated S60: programs run on a CPU plugin that is loaded from a shared library. Values are
// the CPU's; memory size and names are the device's.
#include <dlfcn.h>

#include "driver.h"
#include "named_value.h"

namespace gcu {
namespace {

// The versions of the interface that were tried with this plugin. The table only ever grows, so an
// older one lacks entries at its end and a newer one has more.
constexpr int kOldestMinor = 81;
constexpr int kNewestMinor = 116;

class SimDriver : public Driver {
 public:
  explicit SimDriver(const PJRT_Api& api) : api_(api) {}
  const std::string& name() const override { return name_; }
  const PJRT_Api& api() const override { return api_; }
  const DeviceFacts& facts() const override { return facts_; }
  std::vector<PJRT_NamedValue> ClientOptions(int64_t num_devices) const override {
    return {NamedInt(count_option_, num_devices)};
  }

 private:
  const PJRT_Api& api_;
  const std::string name_ = "sim";
  const std::string count_option_ = "cpu_device_count";
  const DeviceFacts facts_{"Enflame S60 (simulated)", true, int64_t{48} << 30};
};

}  // namespace

std::unique_ptr<Driver> OpenSim(const std::string& plugin_path, std::string& reason) {
  if (plugin_path.empty()) {
    reason = "driver 'sim' needs the path of a CPU PJRT plugin";
    return nullptr;
  }
  void* library = dlopen(plugin_path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    reason = "driver 'sim' cannot load the CPU PJRT plugin: " + std::string(dlerror());
    return nullptr;
  }
  auto get_api = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
  const PJRT_Api* api = get_api == nullptr ? nullptr : get_api();
  if (api == nullptr) {
    reason = "driver 'sim': " + plugin_path + " is no PJRT plugin, it gives no GetPjrtApi";
    return nullptr;
  }
  const PJRT_Api_Version& version = api->pjrt_api_version;
  if (version.major_version != 0 || version.minor_version < kOldestMinor ||
      version.minor_version > kNewestMinor) {
    reason = "driver 'sim': " + plugin_path + " has PJRT version " +
             std::to_string(version.major_version) + "." + std::to_string(version.minor_version) +
             ", this plugin works with 0." + std::to_string(kOldestMinor) + " to 0." +
             std::to_string(kNewestMinor);
    return nullptr;
  }
  return std::make_unique<SimDriver>(*api);
}

}  // namespace gcu
