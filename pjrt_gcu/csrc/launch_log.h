// The launches of the process, in the order in which they were accepted.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

namespace gcu {

// One launch. Read by Python through ctypes: only fixed-size fields.
struct Launch {
  int64_t sequence;     // counts from 0
  int64_t program;      // see LaunchLog::ProgramName
  int64_t num_devices;
  int64_t bytes;        // that one device must read and write at least once
  double flops;         // of one device's products, 0 = not known
  int64_t start_ns;     // monotonic clock
};

// Keeps the last kCapacity launches.
class LaunchLog {
 public:
  static constexpr size_t kCapacity = 1 << 16;

  int64_t AddProgram(std::string name);
  std::string ProgramName(int64_t program) const;
  void Add(Launch launch);  // sets the sequence
  // The launches from `sequence` on, `room` at most; returns their number.
  size_t Copy(int64_t sequence, Launch* to, size_t room) const;

 private:
  mutable std::mutex mutex_;
  std::deque<Launch> launches_;
  int64_t next_ = 0;
  std::vector<std::string> names_;
};

LaunchLog& Log();

}  // namespace gcu
