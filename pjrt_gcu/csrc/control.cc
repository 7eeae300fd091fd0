// What Python asks of the plugin beside PJRT: plain C functions, called through ctypes.
#include <cstring>
#include <string>

#include "counters.h"
#include "custom_call.h"
#include "driver.h"
#include "launch_log.h"
#include "memory.h"
#include "program.h"

#define GCU_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Copies a text and its closing zero, cut to the room there is; returns the length of the whole.
size_t CopyText(const std::string& text, char* to, size_t room) {
  if (room != 0) {
    const size_t length = text.size() < room ? text.size() : room - 1;
    std::memcpy(to, text.data(), length);
    to[length] = '\0';
  }
  return text.size();
}

}  // namespace

// The functions that can fail return the length of the reason that they write, 0 = done.

GCU_EXPORT size_t gcu_open_driver(const char* name, const char* path, char* reason, size_t room) {
  return CopyText(gcu::OpenDriver(name, path), reason, room);
}

GCU_EXPORT size_t gcu_register_custom_call(const char* name, void* function, char* reason,
                                           size_t room) {
  return CopyText(gcu::RegisterCustomCall(name, function), reason, room);
}

GCU_EXPORT void gcu_set_program_check(gcu::ProgramCheck check) { gcu::SetProgramCheck(check); }

GCU_EXPORT void gcu_set_memory_limit(int device_id, int64_t bytes) {
  gcu::SetMemoryLimit(device_id, bytes);
}

// The names of all counters with a space between, and a counter by its name; -1 = no such counter.
GCU_EXPORT const char* gcu_counter_names() {
#define GCU_NAME(name) #name " "
  return GCU_COUNTERS(GCU_NAME);
#undef GCU_NAME
}

GCU_EXPORT int64_t gcu_counter(const char* wanted) {
#define GCU_VALUE(name) \
  if (std::strcmp(wanted, #name) == 0) return gcu::Count().name;
  GCU_COUNTERS(GCU_VALUE)
#undef GCU_VALUE
  return -1;
}

GCU_EXPORT size_t gcu_launches(int64_t sequence, gcu::Launch* to, size_t room) {
  return gcu::Log().Copy(sequence, to, room);
}

GCU_EXPORT size_t gcu_program_name(int64_t program, char* name, size_t room) {
  return CopyText(gcu::Log().ProgramName(program), name, room);
}
