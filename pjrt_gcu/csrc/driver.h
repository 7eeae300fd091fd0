// What runs programs beneath the plugin. A driver supplies a PJRT table whose objects do the work;
// the plugin adds what is common to every GCU: names, memory limits, counters, the operation check.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pjrt_abi.h"

namespace gcu {

// What the devices of a driver are.
struct DeviceFacts {
  std::string kind;
  bool is_simulated;
  int64_t memory_bytes;  // per device
};

class Driver {
 public:
  virtual ~Driver() = default;
  virtual const std::string& name() const = 0;
  virtual const PJRT_Api& api() const = 0;
  virtual const DeviceFacts& facts() const = 0;
  // The options that the driver's own client takes so that it has this many devices. The names that
  // they point to live as long as the driver.
  virtual std::vector<PJRT_NamedValue> ClientOptions(int64_t num_devices) const = 0;
};

// Each opens a driver, or returns null and says in `reason` what is missing.
std::unique_ptr<Driver> OpenSim(const std::string& plugin_path, std::string& reason);
std::unique_ptr<Driver> OpenTops(const std::string& library_path, std::string& reason);

// Opens the driver of this name for the process, once; later calls must name the same one. Returns
// an empty string or the reason why it cannot be used. `path` is the library it works with.
std::string OpenDriver(const std::string& name, const std::string& path);

// The open driver, null before OpenDriver succeeded.
const Driver* CurrentDriver();

}  // namespace gcu
