#include "ledger.h"

#include <algorithm>
#include <cstdio>

#include "counters.h"
#include "error.h"
#include "pjrt_abi.h"

namespace gcu {
namespace {

std::string Bytes(int64_t bytes) {
  char text[64];
  std::snprintf(text, sizeof(text), "%lld bytes (%.2f GiB)", static_cast<long long>(bytes),
                static_cast<double>(bytes) / (int64_t{1} << 30));
  return text;
}

}  // namespace

void* Ledger::TryCharge(int64_t bytes, const std::string& purpose) {
  LedgerState seen;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (bytes <= 0 || state_.in_use + bytes <= state_.limit) {
      state_.in_use += bytes;
      state_.peak = std::max(state_.peak, state_.in_use);
      return nullptr;
    }
    seen = state_;
  }
  Count().out_of_memory++;
  return MakeError(PJRT_Error_Code_RESOURCE_EXHAUSTED,
                   "GCU device " + std::to_string(device_id_) + " is out of memory: " + purpose +
                       " needs " + Bytes(bytes) + ", " + Bytes(seen.in_use) + " of " +
                       Bytes(seen.limit) + " are in use");
}

void Ledger::Adjust(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  state_.in_use += bytes;
  state_.peak = std::max(state_.peak, state_.in_use);
}

void Ledger::CountAllocation(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  state_.num_allocations++;
  state_.largest = std::max(state_.largest, bytes);
}

LedgerState Ledger::state() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_;
}

void Ledger::SetLimit(int64_t limit) {
  std::lock_guard<std::mutex> lock(mutex_);
  state_.limit = limit;
}

void Ledger::ClearPeak() {
  std::lock_guard<std::mutex> lock(mutex_);
  state_.peak = state_.in_use;
}

}  // namespace gcu
