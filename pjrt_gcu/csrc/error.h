// Errors that this plugin itself reports. PJRT errors are opaque objects, and those of the driver's
// table pass through untouched; an error of ours must therefore be told from one of the driver's.
#pragma once

#include <string>

namespace gcu {

// A new error for the caller, who destroys it through the table. `code` is a PJRT_Error_Code.
void* MakeError(int code, std::string message);

// Destroys an error of either kind; null is allowed.
void DestroyError(void* error);

// Text and code of an error of either kind.
std::string ErrorMessage(void* error);
int ErrorCode(void* error);

}  // namespace gcu
