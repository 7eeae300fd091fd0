// What the plugin has done in this process. Counters only grow.
#pragma once

#include <atomic>
#include <cstdint>

namespace gcu {

#define GCU_COUNTERS(X)                                                            \
  X(compiles)            /* programs compiled */                                   \
  X(refusals)            /* programs that the operation check refused */           \
  X(loads)               /* programs loaded from their serialised form */          \
  X(launches)            /* program launches, one for all devices of a program */  \
  X(host_to_device)      /* transfers */                                           \
  X(host_to_device_bytes)                                                          \
  X(device_to_host)                                                                \
  X(device_to_host_bytes)                                                          \
  X(device_to_device)                                                              \
  X(device_to_device_bytes)                                                        \
  X(out_of_memory)       /* allocations and launches refused for want of memory */

struct Counters {
#define GCU_COUNTER(name) std::atomic<int64_t> name{0};
  GCU_COUNTERS(GCU_COUNTER)
#undef GCU_COUNTER
};

inline Counters& Count() {
  static Counters counters;
  return counters;
}

}  // namespace gcu
