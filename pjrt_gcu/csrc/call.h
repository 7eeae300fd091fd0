// Calls into the table of the driver, whose version may be newer or older than the header's.
#pragma once

#include <cstring>

#include "pjrt_abi.h"

namespace gcu {

// The table that the open driver supplies. Its objects (clients, devices, buffers, executables,
// events) are handed to the framework as they are; what this plugin knows of them lies beside them.
const PJRT_Api& Below();

// Zeroed arguments with room behind them: a newer driver refuses a struct that is shorter than its
// own, and reads zero, "not set", from the fields that this header does not know.
template <class Args>
struct Call {
  Call() {
    std::memset(this, 0, sizeof(*this));
    args.struct_size = sizeof(*this);
  }
  Args args;
  unsigned char room[128];
};

}  // namespace gcu
