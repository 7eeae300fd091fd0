#include "program.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "call.h"
#include "counters.h"
#include "entries.h"
#include "error.h"
#include "launch_log.h"
#include "memory.h"

namespace gcu {
namespace {

std::atomic<ProgramCheck> program_check{nullptr};

// What is known of a loaded program; made once, read by every launch. Sizes are of one device.
struct Program {
  std::string name;
  int64_t log_id = 0;
  std::vector<void*> devices;
  size_t num_outputs = 0;
  int64_t launch_bytes = 0;  // new memory of a launch: outputs that take no donated input's place,
                             // and temporaries
  int64_t temporary_bytes = 0;
  int64_t traffic_bytes = 0;  // that a launch reads and writes at least once
  double flops = 0;
};

class Programs {
 public:
  void Add(const void* executable, std::shared_ptr<const Program> program) {
    std::lock_guard<std::mutex> lock(mutex_);
    programs_[executable] = std::move(program);
  }
  std::shared_ptr<const Program> Find(const void* executable) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = programs_.find(executable);
    return found == programs_.end() ? nullptr : found->second;
  }
  void Remove(const void* executable) {
    std::lock_guard<std::mutex> lock(mutex_);
    programs_.erase(executable);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<const Program>> programs_;
};

Programs& All() {
  static Programs* programs = new Programs;  // outlives static destructors of other libraries
  return *programs;
}

// Fills in what the executable itself tells; memory sizes stay 0 where the driver has none.
void* Describe(void* executable, Program& program) {
  Call<PJRT_Executable_NumOutputs_Args> outputs;
  outputs.args.executable = executable;
  if (void* error = Below().PJRT_Executable_NumOutputs(&outputs.args)) return error;
  program.num_outputs = outputs.args.num_outputs;

  Call<PJRT_Executable_Name_Args> name;
  name.args.executable = executable;
  if (void* error = Below().PJRT_Executable_Name(&name.args)) return error;
  program.name.assign(static_cast<const char*>(name.args.executable_name),
                      name.args.executable_name_size);

  Call<PJRT_Executable_GetCompiledMemoryStats_Args> memory;
  memory.args.executable = executable;
  if (void* error = Below().PJRT_Executable_GetCompiledMemoryStats(&memory.args)) {
    DestroyError(error);
    return nullptr;
  }
  const int64_t new_outputs = memory.args.output_size_in_bytes - memory.args.alias_size_in_bytes;
  program.temporary_bytes = memory.args.temp_size_in_bytes;
  program.launch_bytes = new_outputs + program.temporary_bytes;
  program.traffic_bytes =
      memory.args.argument_size_in_bytes - memory.args.alias_size_in_bytes + new_outputs;
  return nullptr;
}

void* Remember(void* loaded, double flops) {
  auto program = std::make_shared<Program>();
  program->flops = flops;
  Call<PJRT_LoadedExecutable_AddressableDevices_Args> devices;
  devices.args.executable = loaded;
  if (void* error = Below().PJRT_LoadedExecutable_AddressableDevices(&devices.args)) return error;
  void** first = static_cast<void**>(devices.args.addressable_devices);
  program->devices.assign(first, first + devices.args.num_addressable_devices);

  Call<PJRT_LoadedExecutable_GetExecutable_Args> get;
  get.args.loaded_executable = loaded;
  if (void* error = Below().PJRT_LoadedExecutable_GetExecutable(&get.args)) return error;
  void* error = Describe(get.args.executable, *program);
  Call<PJRT_Executable_Destroy_Args> destroy;
  destroy.args.executable = get.args.executable;
  DestroyError(Below().PJRT_Executable_Destroy(&destroy.args));
  if (error != nullptr) return error;

  program->log_id = Log().AddProgram(program->name);
  All().Add(loaded, std::move(program));
  return nullptr;
}

void* Compile(PJRT_Client_Compile_Args* args) {
  double flops = 0;
  if (ProgramCheck check = program_check.load()) {
    const auto* source = static_cast<const PJRT_Program*>(args->program);
    std::vector<char> message(1 << 14, '\0');
    if (check(source->code, source->code_size, message.data(), message.size(), &flops) != 0) {
      Count().refusals++;
      return MakeError(PJRT_Error_Code_UNIMPLEMENTED, message.data());
    }
  }
  if (void* error = Below().PJRT_Client_Compile(args)) return error;
  Count().compiles++;
  return Remember(args->executable, flops);
}

void* DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args* args) {
  if (void* error = Below().PJRT_Executable_DeserializeAndLoad(args)) return error;
  Count().loads++;
  return Remember(args->loaded_executable, 0);
}

void* Load(PJRT_Client_Load_Args* args) {
  if (void* error = Below().PJRT_Client_Load(args)) return error;
  Count().loads++;
  return Remember(args->loaded_executable, 0);
}

void* Destroy(PJRT_LoadedExecutable_Destroy_Args* args) {
  All().Remove(args->executable);
  return Below().PJRT_LoadedExecutable_Destroy(args);
}

// Memory of a launch that ends with it.
struct Temporary {
  Ledger* ledger;
  int64_t bytes;
};

void ReleaseTemporary(void* error, void* argument) {
  DestroyError(error);
  std::unique_ptr<Temporary> temporary(static_cast<Temporary*>(argument));
  temporary->ledger->Adjust(-temporary->bytes);
}

// Releases `bytes` of the ledger when the event says that the launch has ended.
void ReleaseWhenReady(void* event, Ledger* ledger, int64_t bytes) {
  auto temporary = std::make_unique<Temporary>(Temporary{ledger, bytes});
  Call<PJRT_Event_OnReady_Args> call;
  call.args.event = event;
  call.args.callback = reinterpret_cast<void*>(ReleaseTemporary);
  call.args.user_arg = temporary.get();
  if (void* error = Below().PJRT_Event_OnReady(&call.args)) {
    ReleaseTemporary(error, temporary.release());
  } else {
    temporary.release();  // the callback's now
  }
}

void DestroyEvent(void* event) {
  Call<PJRT_Event_Destroy_Args> call;
  call.args.event = event;
  DestroyError(Below().PJRT_Event_Destroy(&call.args));
}

// The memory of one launch on all its devices: charged before it, settled after it.
class LaunchMemory {
 public:
  LaunchMemory(const Program& program, const PJRT_LoadedExecutable_Execute_Args& args)
      : program_(program), args_(args) {}
  ~LaunchMemory() {
    for (Ledger* ledger : charged_) ledger->Adjust(-program_.launch_bytes);
  }

  void* Charge() {
    const std::string purpose = "a launch of '" + program_.name + "' (outputs and temporaries)";
    for (size_t i = 0; i < args_.num_devices; ++i) {
      Ledger* ledger = LedgerOfDevice(DeviceOf(i));
      if (ledger == nullptr) continue;
      if (void* error = ledger->TryCharge(program_.launch_bytes, purpose)) return error;
      charged_.push_back(ledger);
    }
    return nullptr;
  }

  // After a successful launch: outputs are charged one by one in place of the whole, donated inputs
  // are released, temporaries stay until the device is done.
  void Settle(void** events) {
    auto** arguments = static_cast<void***>(args_.argument_lists);
    auto** outputs = static_cast<void***>(args_.output_lists);
    for (size_t i = 0; i < charged_.size(); ++i) {
      int64_t change = program_.temporary_bytes - program_.launch_bytes;
      for (size_t j = 0; j < args_.num_args; ++j) {
        if (IsDeleted(arguments[i][j])) change -= TakeBuffer(arguments[i][j]);
      }
      for (size_t j = 0; j < program_.num_outputs; ++j) change += Track(outputs[i][j]);
      charged_[i]->Adjust(change);
      if (program_.temporary_bytes != 0) {
        ReleaseWhenReady(events[i], charged_[i], program_.temporary_bytes);
      }
    }
    charged_.clear();
  }

 private:
  void* DeviceOf(size_t i) const {
    return args_.execute_device != nullptr ? args_.execute_device : program_.devices[i];
  }
  // Bytes to charge for an output; 0 where it lies in host memory.
  static int64_t Track(void* output) {
    Call<PJRT_Buffer_Memory_Args> call;
    call.args.buffer = output;
    if (void* error = Below().PJRT_Buffer_Memory(&call.args)) {
      DestroyError(error);
      return 0;
    }
    Ledger* ledger = LedgerOfMemory(call.args.memory);
    if (ledger == nullptr) return 0;
    const int64_t bytes = BufferBytes(output);
    TrackBuffer(output, ledger, bytes);
    return bytes;
  }

  const Program& program_;
  const PJRT_LoadedExecutable_Execute_Args& args_;
  std::vector<Ledger*> charged_;
};

void* Execute(PJRT_LoadedExecutable_Execute_Args* args) {
  std::shared_ptr<const Program> program = All().Find(args->executable);
  if (program == nullptr) {
    return MakeError(PJRT_Error_Code_INVALID_ARGUMENT,
                     "the executable was not compiled or loaded by the GCU plugin");
  }
  LaunchMemory memory(*program, *args);
  if (void* error = memory.Charge()) return error;
  // Ask for the events that tell when temporaries are free, if the caller does not.
  std::vector<void*> own_events;
  if (args->device_complete_events == nullptr && program->temporary_bytes != 0) {
    own_events.resize(args->num_devices);
    args->device_complete_events = own_events.data();
  }
  const auto start = std::chrono::steady_clock::now().time_since_epoch();
  void* error = Below().PJRT_LoadedExecutable_Execute(args);
  void** events = static_cast<void**>(args->device_complete_events);
  if (!own_events.empty()) args->device_complete_events = nullptr;
  if (error != nullptr) return error;
  memory.Settle(events);
  for (void* event : own_events) DestroyEvent(event);
  Count().launches++;
  Log().Add(Launch{0, program->log_id, static_cast<int64_t>(args->num_devices),
                   program->traffic_bytes, program->flops,
                   std::chrono::duration_cast<std::chrono::nanoseconds>(start).count()});
  return nullptr;
}

}  // namespace

void SetProgramCheck(ProgramCheck check) { program_check = check; }

void InstallProgramEntries(PJRT_Api& table) {
  table.PJRT_Client_Compile = Compile;
  table.PJRT_Client_Load = Load;
  table.PJRT_Executable_DeserializeAndLoad = DeserializeAndLoad;
  table.PJRT_LoadedExecutable_Destroy = Destroy;
  table.PJRT_LoadedExecutable_Execute = Execute;
}

}  // namespace gcu
