#include "driver.h"

#include <mutex>

namespace gcu {
namespace {

std::mutex mutex;
Driver* current = nullptr;  // lives until the process ends, as every plugin does

}  // namespace

std::string OpenDriver(const std::string& name, const std::string& path) {
  std::lock_guard<std::mutex> lock(mutex);
  if (current != nullptr) {
    if (current->name() == name) return "";
    return "driver '" + name + "' cannot be opened: driver '" + current->name() +
           "' is open in this process; start another process";
  }
  std::string reason;
  std::unique_ptr<Driver> driver;
  if (name == "sim") {
    driver = OpenSim(path, reason);
  } else if (name == "tops") {
    driver = OpenTops(path, reason);
  } else {
    reason = "there is no driver '" + name + "'; use sim or tops";
  }
  current = driver.release();
  return reason;
}

const Driver* CurrentDriver() {
  std::lock_guard<std::mutex> lock(mutex);
  return current;
}

}  // namespace gcu
