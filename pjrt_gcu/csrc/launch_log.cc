#include "launch_log.h"

#include <utility>

namespace gcu {

int64_t LaunchLog::AddProgram(std::string name) {
  std::lock_guard<std::mutex> lock(mutex_);
  names_.push_back(std::move(name));
  return static_cast<int64_t>(names_.size()) - 1;
}

std::string LaunchLog::ProgramName(int64_t program) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (program < 0 || program >= static_cast<int64_t>(names_.size())) return "";
  return names_[program];
}

void LaunchLog::Add(Launch launch) {
  std::lock_guard<std::mutex> lock(mutex_);
  launch.sequence = next_++;
  launches_.push_back(launch);
  if (launches_.size() > kCapacity) launches_.pop_front();
}

size_t LaunchLog::Copy(int64_t sequence, Launch* to, size_t room) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t first = next_ - static_cast<int64_t>(launches_.size());
  size_t copied = 0;
  for (int64_t i = sequence < first ? first : sequence; i < next_ && copied < room; ++i) {
    to[copied++] = launches_[i - first];
  }
  return copied;
}

LaunchLog& Log() {
  static LaunchLog* log = new LaunchLog;  // outlives static destructors of other libraries
  return *log;
}

}  // namespace gcu
