// The vendor's runtime. This version only finds out whether it is there and says what is missing:
// no program can run on it yet.
#include <dlfcn.h>

#include <string>
#include <vector>

#include "driver.h"

namespace gcu {
namespace {

// A library of the vendor's stack, what it is for, and entries that the driver will call.
struct Library {
  const char* file;
  const char* purpose;
  std::vector<const char*> entries;
};

const Library kRuntime{"libtopsrt.so",
                       "runtime",
                       {"topsInit", "topsGetDeviceCount", "topsSetDevice", "topsMalloc", "topsFree",
                        "topsMemcpyAsync", "topsMemcpyPeerAsync", "topsMemGetInfo",
                        "topsStreamCreate", "topsStreamSynchronize", "topsEventCreateWithFlags",
                        "topsEventRecord", "topsCreateExecutable", "topsLaunchExecutable",
                        "topsGetErrorString"}};
const Library kCompiler{"libdtu_sdk.so",
                        "graph compiler",
                        {"topsgraphCreateProgramFromString", "topsgraphCompileProgram",
                         "topsgraphGetBinSize", "topsgraphGetBin"}};
const Library kCollectives{"libeccl.so", "collectives", {"ecclCommInitAll", "ecclAllReduce"}};

// "libtopsrt.so (runtime): found", or what it lacks. `path` overrides the file's name.
std::string Describe(const Library& library, const std::string& path, void** handle) {
  const std::string title = std::string(library.file) + " (" + library.purpose + "): ";
  for (const std::string& candidate : {path, std::string("/opt/tops/lib/") + library.file}) {
    if (*handle == nullptr) *handle = dlopen(candidate.c_str(), RTLD_LAZY | RTLD_LOCAL);
  }
  if (*handle == nullptr) return title + "not found";
  std::string missing;
  for (const char* entry : library.entries) {
    if (dlsym(*handle, entry) == nullptr) missing += std::string(" ") + entry;
  }
  return title + (missing.empty() ? "found" : "lacks" + missing);
}

}  // namespace

std::unique_ptr<Driver> OpenTops(const std::string& library_path, std::string& reason) {
  void* runtime = nullptr;
  void* compiler = nullptr;
  void* collectives = nullptr;
  const std::string path = library_path.empty() ? kRuntime.file : library_path;
  reason = "driver 'tops' cannot run programs in this version. " +
           Describe(kRuntime, path, &runtime) + "; " +
           Describe(kCompiler, kCompiler.file, &compiler) + "; " +
           Describe(kCollectives, kCollectives.file, &collectives);
  if (runtime != nullptr) {
    auto count_devices = reinterpret_cast<int (*)(int*)>(dlsym(runtime, "topsGetDeviceCount"));
    int count = 0;
    if (count_devices != nullptr && count_devices(&count) == 0) {
      reason += "; devices: " + std::to_string(count);
    }
  } else {
    reason += ". Install the vendor's TopsRider packages";
  }
  reason += ". Use the driver sim to run on a simulated device";
  return nullptr;
}

}  // namespace gcu
