// Custom calls: native functions that programs call by name.
#pragma once

#include <string>

namespace gcu {

// Registers an XLA FFI function under `name` with the driver. Returns an empty string, or why it
// cannot be: the driver drops a function of a newer FFI version than its own without a word, so its
// version is asked first.
std::string RegisterCustomCall(const std::string& name, void* function);

}  // namespace gcu
