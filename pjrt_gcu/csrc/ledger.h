// The memory of one device: bytes charged against a limit. Every byte charged is released again by
// the owner of the charge, so the sum is exact at any time.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

namespace gcu {

struct LedgerState {
  int64_t in_use = 0;
  int64_t peak = 0;
  int64_t limit = 0;
  int64_t num_allocations = 0;
  int64_t largest = 0;
};

class Ledger {
 public:
  Ledger(int device_id, int64_t limit) : device_id_(device_id) { state_.limit = limit; }

  // Charges `bytes`, or charges nothing and returns an error that names `purpose` and the numbers.
  void* TryCharge(int64_t bytes, const std::string& purpose);
  // Charges what is there already and cannot be refused; negative bytes release.
  void Adjust(int64_t bytes);
  void CountAllocation(int64_t bytes);
  LedgerState state() const;
  void SetLimit(int64_t limit);
  void ClearPeak();

 private:
  const int device_id_;
  mutable std::mutex mutex_;
  LedgerState state_;
};

}  // namespace gcu
