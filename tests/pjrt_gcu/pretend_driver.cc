#include "pretend_driver.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "driver.h"
#include "named_value.h"

namespace pretend {
namespace {

std::atomic<int64_t> num_objects{0};

struct Counted {
  Counted() { num_objects++; }
  ~Counted() { num_objects--; }
};

std::mutex gate_mutex;
std::condition_variable gate_opened;
bool is_gate_closed = false;

struct Error : Counted {
  std::string message;
};

// Copies of an event share what has happened.
class Happening {
 public:
  void Happen() {
    std::deque<std::function<void()>> callbacks;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_done_ = true;
      callbacks.swap(callbacks_);
    }
    happened_.notify_all();
    for (auto& callback : callbacks) callback();
  }
  bool IsDone() {
    std::lock_guard<std::mutex> lock(mutex_);
    return is_done_;
  }
  void Await() {
    std::unique_lock<std::mutex> lock(mutex_);
    happened_.wait(lock, [this] { return is_done_; });
  }
  void OnReady(std::function<void()> callback) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!is_done_) {
        callbacks_.push_back(std::move(callback));
        return;
      }
    }
    callback();
  }

 private:
  std::mutex mutex_;
  std::condition_variable happened_;
  bool is_done_ = false;
  std::deque<std::function<void()>> callbacks_;
};

struct Event : Counted {
  std::shared_ptr<Happening> happening = std::make_shared<Happening>();
};

// Runs work one after the other on a thread of its own.
class Stream {
 public:
  Stream() : thread_([this] { Run(); }) {}
  ~Stream() {
    Add(nullptr);
    thread_.join();
  }
  void Add(std::function<void()> work) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      work_.push_back(std::move(work));
    }
    added_.notify_one();
  }

 private:
  void Run() {
    while (true) {
      std::function<void()> work;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        added_.wait(lock, [this] { return !work_.empty(); });
        work = std::move(work_.front());
        work_.pop_front();
      }
      if (!work) return;
      {
        std::unique_lock<std::mutex> lock(gate_mutex);
        gate_opened.wait(lock, [] { return !is_gate_closed; });
      }
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<std::function<void()>> work_;
  std::thread thread_;
};

struct Device;

struct Memory {
  Device* device;
  std::string kind;
};

struct Device {
  explicit Device(int id) : id(id) {}
  int id;
  Memory own{this, "device"}, host{this, "pinned_host"};
  void* memories[2] = {&own, &host};
  Stream stream;
};

using Bytes = std::vector<unsigned char>;

struct Buffer : Counted {
  Buffer(Memory* memory, int64_t size) : memory(memory), size(size) {}
  Memory* memory;
  int64_t size;
  std::shared_ptr<Bytes> bytes = std::make_shared<Bytes>();  // null = deleted
  std::shared_ptr<Happening> filled = std::make_shared<Happening>();
};

struct Client {
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<void*> handles;
};

struct Executable {
  Recipe recipe;
  Client* client;
};

void* Create(PJRT_Client_Create_Args* args) {
  auto* options = static_cast<PJRT_NamedValue*>(args->create_options);
  auto* client = new Client;  // one for the process; its streams end with it
  for (int id = 0; id < options[0]._anon5.int64_value; ++id) {
    client->devices.push_back(std::make_unique<Device>(id));
    client->handles.push_back(client->devices.back().get());
  }
  args->client = client;
  return nullptr;
}

void* DestroyClient(PJRT_Client_Destroy_Args* args) {
  delete static_cast<Client*>(args->client);
  return nullptr;
}

void* Devices(PJRT_Client_AddressableDevices_Args* args) {
  auto* client = static_cast<Client*>(args->client);
  args->addressable_devices = client->handles.data();
  args->num_addressable_devices = client->handles.size();
  return nullptr;
}

void* Description(PJRT_Device_GetDescription_Args* args) {
  args->device_description = args->device;
  return nullptr;
}

void* Id(PJRT_DeviceDescription_Id_Args* args) {
  args->id = static_cast<Device*>(args->device_description)->id;
  return nullptr;
}

void* Memories(PJRT_Device_AddressableMemories_Args* args) {
  args->memories = static_cast<Device*>(args->device)->memories;
  args->num_memories = 2;
  return nullptr;
}

void* MemoryKind(PJRT_Memory_Kind_Args* args) {
  std::string& kind = static_cast<Memory*>(args->memory)->kind;
  args->kind = kind.data();
  args->kind_size = kind.size();
  return nullptr;
}

void* FromHost(PJRT_Client_BufferFromHostBuffer_Args* args) {
  auto* device = static_cast<Device*>(args->device);
  Memory* memory = args->memory ? static_cast<Memory*>(args->memory) : &device->own;
  auto* buffer = new Buffer(memory, static_cast<int64_t*>(args->dims)[0]);
  auto* event = new Event;
  auto* data = static_cast<unsigned char*>(args->data);
  event->happening = buffer->filled;
  memory->device->stream.Add([bytes = buffer->bytes, size = buffer->size, data,
                              happening = buffer->filled] {
    bytes->assign(data, data + size);
    happening->Happen();
  });
  args->buffer = buffer;
  args->done_with_host_buffer = event;
  return nullptr;
}

void* Size(PJRT_Buffer_OnDeviceSizeInBytes_Args* args) {
  args->on_device_size_in_bytes = static_cast<Buffer*>(args->buffer)->size;
  return nullptr;
}

void* MemoryOf(PJRT_Buffer_Memory_Args* args) {
  args->memory = static_cast<Buffer*>(args->buffer)->memory;
  return nullptr;
}

void* IsDeleted(PJRT_Buffer_IsDeleted_Args* args) {
  args->is_deleted = static_cast<Buffer*>(args->buffer)->bytes == nullptr;
  return nullptr;
}

void* Delete(PJRT_Buffer_Delete_Args* args) {
  static_cast<Buffer*>(args->buffer)->bytes = nullptr;
  return nullptr;
}

void* DestroyBuffer(PJRT_Buffer_Destroy_Args* args) {
  delete static_cast<Buffer*>(args->buffer);
  return nullptr;
}

void* ToHost(PJRT_Buffer_ToHostBuffer_Args* args) {
  auto* buffer = static_cast<Buffer*>(args->src);
  auto* event = new Event;
  auto* to = static_cast<unsigned char*>(args->dst);
  buffer->memory->device->stream.Add([bytes = buffer->bytes, to, happening = event->happening] {
    std::memcpy(to, bytes->data(), bytes->size());
    happening->Happen();
  });
  args->event = event;
  return nullptr;
}

void* ReadyEvent(PJRT_Buffer_ReadyEvent_Args* args) {
  auto* event = new Event;
  event->happening = static_cast<Buffer*>(args->buffer)->filled;
  args->event = event;
  return nullptr;
}

void* IsReady(PJRT_Event_IsReady_Args* args) {
  args->is_ready = static_cast<Event*>(args->event)->happening->IsDone();
  return nullptr;
}

void* EventError(PJRT_Event_Error_Args*) { return nullptr; }

void* Pointer(PJRT_Buffer_UnsafePointer_Args* args) {
  args->buffer_pointer =
      reinterpret_cast<size_t>(static_cast<Buffer*>(args->buffer)->bytes->data());
  return nullptr;
}

// The one thing that this driver cannot do.
void* CopyToDevice(PJRT_Buffer_CopyToDevice_Args*) {
  auto* error = new Error;
  error->message = "no peer copies";
  return error;
}

void* AwaitEvent(PJRT_Event_Await_Args* args) {
  static_cast<Event*>(args->event)->happening->Await();
  return nullptr;
}

void* OnReady(PJRT_Event_OnReady_Args* args) {
  auto callback = reinterpret_cast<void (*)(void*, void*)>(args->callback);
  static_cast<Event*>(args->event)->happening->OnReady(
      [callback, argument = args->user_arg] { callback(nullptr, argument); });
  return nullptr;
}

void* DestroyEvent(PJRT_Event_Destroy_Args* args) {
  delete static_cast<Event*>(args->event);
  return nullptr;
}

void DestroyError(PJRT_Error_Destroy_Args* args) { delete static_cast<Error*>(args->error); }

void ErrorText(PJRT_Error_Message_Args* args) {
  std::string& message = static_cast<Error*>(args->error)->message;
  args->message = message.data();
  args->message_size = message.size();
}

void* ErrorCodeOf(PJRT_Error_GetCode_Args* args) {
  args->code = PJRT_Error_Code_INTERNAL;
  return nullptr;
}

void* Compile(PJRT_Client_Compile_Args* args) {
  auto* program = static_cast<PJRT_Program*>(args->program);
  auto* executable = new Executable;
  std::memcpy(&executable->recipe, program->code, sizeof(Recipe));
  executable->client = static_cast<Client*>(args->client);
  args->executable = executable;
  return nullptr;
}

void* ExecutableOf(PJRT_LoadedExecutable_GetExecutable_Args* args) {
  args->executable = args->loaded_executable;
  return nullptr;
}

void* ReleaseExecutable(PJRT_Executable_Destroy_Args*) { return nullptr; }

void* DestroyExecutable(PJRT_LoadedExecutable_Destroy_Args* args) {
  delete static_cast<Executable*>(args->executable);
  return nullptr;
}

void* ExecutableDevices(PJRT_LoadedExecutable_AddressableDevices_Args* args) {
  args->addressable_devices = static_cast<Executable*>(args->executable)->client->handles.data();
  args->num_addressable_devices = 1;
  return nullptr;
}

void* ExecutableName(PJRT_Executable_Name_Args* args) {
  Recipe& recipe = static_cast<Executable*>(args->executable)->recipe;
  args->executable_name = recipe.name;
  args->executable_name_size = std::strlen(recipe.name);
  return nullptr;
}

void* NumOutputs(PJRT_Executable_NumOutputs_Args* args) {
  args->num_outputs = static_cast<Executable*>(args->executable)->recipe.num_outputs;
  return nullptr;
}

void* CompiledMemory(PJRT_Executable_GetCompiledMemoryStats_Args* args) {
  const Recipe& recipe = static_cast<Executable*>(args->executable)->recipe;
  args->argument_size_in_bytes = recipe.output_bytes;
  args->output_size_in_bytes = recipe.num_outputs * recipe.output_bytes;
  args->alias_size_in_bytes = recipe.donates ? recipe.output_bytes : 0;
  args->temp_size_in_bytes = recipe.temporary_bytes;
  return nullptr;
}

void* Execute(PJRT_LoadedExecutable_Execute_Args* args) {
  auto* executable = static_cast<Executable*>(args->executable);
  const Recipe& recipe = executable->recipe;
  auto** arguments = static_cast<void***>(args->argument_lists);
  auto** outputs = static_cast<void***>(args->output_lists);
  auto** events = static_cast<void**>(args->device_complete_events);
  for (size_t i = 0; i < args->num_devices; ++i) {
    auto* argument = static_cast<Buffer*>(arguments[i][0]);
    std::vector<std::shared_ptr<Bytes>> results;
    std::vector<std::shared_ptr<Happening>> filled{std::make_shared<Happening>()};
    for (int64_t j = 0; j < recipe.num_outputs; ++j) {
      auto* output = new Buffer(argument->memory, recipe.output_bytes);
      results.push_back(output->bytes);
      filled.push_back(output->filled);
      outputs[i][j] = output;
    }
    std::shared_ptr<Bytes> from = argument->bytes;
    if (recipe.donates) argument->bytes = nullptr;
    if (events != nullptr) {
      auto* event = new Event;
      event->happening = filled[0];
      events[i] = event;
    }
    argument->memory->device->stream.Add([from, results, filled] {
      for (const auto& result : results) {
        *result = *from;
        for (unsigned char& byte : *result) ++byte;
      }
      for (const auto& happening : filled) happening->Happen();
    });
  }
  return nullptr;
}

PJRT_Api Table() {
  PJRT_Api table;
  std::memset(&table, 0, sizeof(table));
  table.struct_size = sizeof(table);
  table.pjrt_api_version = PJRT_Api_Version{sizeof(PJRT_Api_Version), nullptr, 0, 114};
  table.PJRT_Client_Create = Create;
  table.PJRT_Client_Destroy = DestroyClient;
  table.PJRT_Client_AddressableDevices = Devices;
  table.PJRT_Client_BufferFromHostBuffer = FromHost;
  table.PJRT_Client_Compile = Compile;
  table.PJRT_Device_GetDescription = Description;
  table.PJRT_Device_AddressableMemories = Memories;
  table.PJRT_DeviceDescription_Id = Id;
  table.PJRT_Memory_Kind = MemoryKind;
  table.PJRT_Buffer_OnDeviceSizeInBytes = Size;
  table.PJRT_Buffer_Memory = MemoryOf;
  table.PJRT_Buffer_IsDeleted = IsDeleted;
  table.PJRT_Buffer_Delete = Delete;
  table.PJRT_Buffer_Destroy = DestroyBuffer;
  table.PJRT_Buffer_ToHostBuffer = ToHost;
  table.PJRT_Buffer_CopyToDevice = CopyToDevice;
  table.PJRT_Buffer_ReadyEvent = ReadyEvent;
  table.PJRT_Buffer_UnsafePointer = Pointer;
  table.PJRT_Event_Await = AwaitEvent;
  table.PJRT_Event_IsReady = IsReady;
  table.PJRT_Event_Error = EventError;
  table.PJRT_Event_OnReady = OnReady;
  table.PJRT_Event_Destroy = DestroyEvent;
  table.PJRT_Error_Destroy = DestroyError;
  table.PJRT_Error_Message = ErrorText;
  table.PJRT_Error_GetCode = ErrorCodeOf;
  table.PJRT_Executable_Destroy = ReleaseExecutable;
  table.PJRT_Executable_Name = ExecutableName;
  table.PJRT_Executable_NumOutputs = NumOutputs;
  table.PJRT_Executable_GetCompiledMemoryStats = CompiledMemory;
  table.PJRT_LoadedExecutable_GetExecutable = ExecutableOf;
  table.PJRT_LoadedExecutable_AddressableDevices = ExecutableDevices;
  table.PJRT_LoadedExecutable_Destroy = DestroyExecutable;
  table.PJRT_LoadedExecutable_Execute = Execute;
  return table;
}

class PretendDriver : public gcu::Driver {
 public:
  const std::string& name() const override { return name_; }
  const PJRT_Api& api() const override { return api_; }
  const gcu::DeviceFacts& facts() const override { return facts_; }
  std::vector<PJRT_NamedValue> ClientOptions(int64_t num_devices) const override {
    return {gcu::NamedInt(option_, num_devices)};
  }

 private:
  const std::string name_ = "sim", option_ = "count";
  const PJRT_Api api_ = Table();
  const gcu::DeviceFacts facts_{"pretended", true, 1000};
};

}  // namespace

void HoldStreams() {
  std::lock_guard<std::mutex> lock(gate_mutex);
  is_gate_closed = true;
}

void ReleaseStreams() {
  {
    std::lock_guard<std::mutex> lock(gate_mutex);
    is_gate_closed = false;
  }
  gate_opened.notify_all();
}

int64_t NumObjects() { return num_objects; }

}  // namespace pretend

// Takes the place of sim_driver.cc.
std::unique_ptr<gcu::Driver> gcu::OpenSim(const std::string&, std::string&) {
  return std::make_unique<pretend::PretendDriver>();
}
