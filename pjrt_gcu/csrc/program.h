// Programs: checked and compiled, or loaded; launched with their memory charged.
#pragma once

#include <cstddef>

namespace gcu {

// Reads a program in its portable form before it is compiled. Returns 0 when the device can run it;
// otherwise writes why not, as text that ends with a zero, into `message`. `flops` receives the
// floating-point operations of its products.
using ProgramCheck = int (*)(const void* code, size_t size, char* message, size_t room,
                             double* flops);

// Sets the check that every later compilation asks, null = none.
void SetProgramCheck(ProgramCheck check);

}  // namespace gcu
