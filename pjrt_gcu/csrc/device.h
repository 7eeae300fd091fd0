// What a device says of itself.
#pragma once

#include <string>

namespace gcu {

// Name of the platform, as JAX knows it.
inline const std::string kPlatform = "gcu";

// The id of a device of the driver.
int DeviceId(void* device);

}  // namespace gcu
