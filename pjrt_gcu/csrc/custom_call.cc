#include "custom_call.h"

#include <cstring>

#include "call.h"
#include "error.h"

namespace gcu {
namespace {

// The minor FFI version of a driver, by its PJRT version: measured with plugins of these versions.
int FfiMinorOfDriver() {
  const int minor = Below().pjrt_api_version.minor_version;
  if (minor >= 116) return 5;
  if (minor >= 115) return 4;
  return minor >= 106 ? 3 : 0;
}

// The answer of a function that cannot say its version: any address but null.
void* CreateError(void*) {
  static char error;
  return &error;
}

// Asks a function for its FFI version. False where it refuses to say.
bool AskVersion(void* function, XLA_FFI_Api_Version& version) {
  XLA_FFI_Metadata metadata;
  std::memset(&metadata, 0, sizeof(metadata));
  metadata.struct_size = sizeof(metadata);
  metadata.api_version.struct_size = sizeof(metadata.api_version);
  XLA_FFI_Metadata_Extension extension;
  std::memset(&extension, 0, sizeof(extension));
  extension.extension_base.struct_size = sizeof(extension);
  extension.extension_base.type = XLA_FFI_Extension_Metadata;
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame;
  std::memset(&frame, 0, sizeof(frame));
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.extension_start = &extension;
  XLA_FFI_Api api;
  std::memset(&api, 0, sizeof(api));
  api.struct_size = sizeof(api);
  api.XLA_FFI_Error_Create = reinterpret_cast<void*>(CreateError);
  frame.api = &api;
  void* error = reinterpret_cast<void* (*)(XLA_FFI_CallFrame*)>(function)(&frame);
  version = metadata.api_version;
  return error == nullptr;
}

const PJRT_FFI_Extension* FindExtension() {
  auto* extension = static_cast<const PJRT_Extension_Base*>(Below().extension_start);
  while (extension != nullptr && extension->type != PJRT_Extension_Type_FFI) {
    extension = static_cast<const PJRT_Extension_Base*>(extension->next);
  }
  return reinterpret_cast<const PJRT_FFI_Extension*>(extension);
}

}  // namespace

std::string RegisterCustomCall(const std::string& name, void* function) {
  XLA_FFI_Api_Version version;
  if (!AskVersion(function, version)) {
    return "custom call '" + name + "' is built for an XLA FFI that the plugin does not know";
  }
  const int known = FfiMinorOfDriver();
  if (version.major_version != 0 || version.minor_version > known) {
    return "custom call '" + name + "' is built for XLA FFI " +
           std::to_string(version.major_version) + "." + std::to_string(version.minor_version) +
           ", the driver has 0." + std::to_string(known) +
           "; install a driver of the version of jaxlib";
  }
  const PJRT_FFI_Extension* extension = FindExtension();
  if (extension == nullptr) return "custom call '" + name + "': the driver has no FFI extension";
  static const std::string platform = "Host";
  Call<PJRT_FFI_Register_Handler_Args> call;
  call.args.target_name = const_cast<char*>(name.data());
  call.args.target_name_size = name.size();
  call.args.handler = function;
  call.args.platform_name = const_cast<char*>(platform.data());
  call.args.platform_name_size = platform.size();
  auto register_handler =
      reinterpret_cast<void* (*)(PJRT_FFI_Register_Handler_Args*)>(extension->register_handler);
  void* error = register_handler(&call.args);
  if (error == nullptr) return "";
  const std::string message = ErrorMessage(error);
  DestroyError(error);
  return message;
}

}  // namespace gcu
