// Options and attributes as the interface writes them. `name` must outlive the value.
#pragma once

#include <cstring>
#include <string>

#include "pjrt_abi.h"

namespace gcu {

inline PJRT_NamedValue NamedValue(const std::string& name, int type) {
  PJRT_NamedValue value;
  std::memset(&value, 0, sizeof(value));
  value.struct_size = sizeof(value);
  value.name = const_cast<char*>(name.data());
  value.name_size = name.size();
  value.type = type;
  value.value_size = 1;
  return value;
}

inline PJRT_NamedValue NamedInt(const std::string& name, int64_t number) {
  PJRT_NamedValue value = NamedValue(name, PJRT_NamedValue_kInt64);
  value._anon5.int64_value = number;
  return value;
}

// Whether the devices are simulated: an attribute of the plugin and of each device. A number, since
// the frameworks take no other type for a device.
inline PJRT_NamedValue SimulatedAttribute(bool is_simulated) {
  static const auto* name = new std::string("gcu_simulated");
  return NamedInt(*name, is_simulated ? 1 : 0);
}

inline std::string NameOf(const PJRT_NamedValue& value) {
  return std::string(static_cast<const char*>(value.name), value.name_size);
}

}  // namespace gcu
