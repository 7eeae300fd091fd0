// The plugin above a pretend driver, through the table that a framework gets: memory to the byte,
// order and overlap of streams, the operation check, errors, counters and the launch log, and six
// threads at once. Made to be run under sanitizers. Sizes in the expectations are counted by hand.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "call.h"
#include "counters.h"
#include "launch_log.h"
#include "memory.h"
#include "pretend_driver.h"
#include "program.h"

extern "C" const PJRT_Api* GetPjrtApi();

namespace {

using gcu::Call;

void Check(bool is_true, const char* what, int line) {
  if (is_true) return;
  std::printf("line %d: %s\n", line, what);
  std::exit(1);
}
#define CHECK(what) Check(what, #what, __LINE__)

const PJRT_Api& Api() {
  static const PJRT_Api* api = GetPjrtApi();
  return *api;
}

// The text of an error, which is destroyed; "" = none.
std::string Text(void* error) {
  if (error == nullptr) return "";
  Call<PJRT_Error_Message_Args> message;
  message.args.error = error;
  Api().PJRT_Error_Message(&message.args);
  const std::string text(static_cast<const char*>(message.args.message),
                         message.args.message_size);
  Call<PJRT_Error_Destroy_Args> destroy;
  destroy.args.error = error;
  Api().PJRT_Error_Destroy(&destroy.args);
  return text;
}

int64_t Code(void* error) {
  Call<PJRT_Error_GetCode_Args> code;
  code.args.error = error;
  CHECK(Api().PJRT_Error_GetCode(&code.args) == nullptr);
  return code.args.code;
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void* client;
std::vector<void*> devices;

int64_t InUse(int device = 0) {
  Call<PJRT_Device_MemoryStats_Args> stats;
  stats.args.device = devices[device];
  CHECK(Api().PJRT_Device_MemoryStats(&stats.args) == nullptr);
  return stats.args.bytes_in_use;
}

void AwaitAndDestroy(void* event) {
  Call<PJRT_Event_Await_Args> await;
  await.args.event = event;
  CHECK(Api().PJRT_Event_Await(&await.args) == nullptr);
  Call<PJRT_Event_Destroy_Args> destroy;
  destroy.args.event = event;
  CHECK(Api().PJRT_Event_Destroy(&destroy.args) == nullptr);
}

// Puts bytes on a device; null and the reason where it refuses. The bytes must live until they are
// read, which a later launch or read of the same stream waits for.
void* Put(const std::vector<unsigned char>& bytes, void** buffer, void* memory = nullptr) {
  int64_t size = bytes.size();
  Call<PJRT_Client_BufferFromHostBuffer_Args> put;
  put.args.client = client;
  put.args.data = const_cast<unsigned char*>(bytes.data());
  put.args.type = PJRT_Buffer_Type_U8;
  put.args.dims = &size;
  put.args.num_dims = 1;
  put.args.device = devices[0];
  put.args.memory = memory;
  if (void* error = Api().PJRT_Client_BufferFromHostBuffer(&put.args)) return error;
  *buffer = put.args.buffer;
  Call<PJRT_Event_Destroy_Args> destroy;
  destroy.args.event = put.args.done_with_host_buffer;
  CHECK(Api().PJRT_Event_Destroy(&destroy.args) == nullptr);
  return nullptr;
}

std::vector<unsigned char> Read(void* buffer, size_t size) {
  std::vector<unsigned char> bytes(size);
  Call<PJRT_Buffer_ToHostBuffer_Args> read;
  read.args.src = buffer;
  read.args.dst = bytes.data();
  read.args.dst_size = size;
  CHECK(Api().PJRT_Buffer_ToHostBuffer(&read.args) == nullptr);
  AwaitAndDestroy(read.args.event);
  return bytes;
}

void Destroy(void* buffer) {
  Call<PJRT_Buffer_Destroy_Args> destroy;
  destroy.args.buffer = buffer;
  CHECK(Api().PJRT_Buffer_Destroy(&destroy.args) == nullptr);
}

void* Compile(const pretend::Recipe& recipe, void** executable) {
  PJRT_Program program{};
  program.struct_size = sizeof(program);
  program.code = const_cast<pretend::Recipe*>(&recipe);
  program.code_size = sizeof(recipe);
  Call<PJRT_Client_Compile_Args> compile;
  compile.args.client = client;
  compile.args.program = &program;
  void* error = Api().PJRT_Client_Compile(&compile.args);
  *executable = compile.args.executable;
  return error;
}

void DestroyExecutable(void* executable) {
  Call<PJRT_LoadedExecutable_Destroy_Args> destroy;
  destroy.args.executable = executable;
  CHECK(Api().PJRT_LoadedExecutable_Destroy(&destroy.args) == nullptr);
}

// Launches on the first device; the outputs that were made.
void* Launch(void* executable, void* argument, std::vector<void*>& outputs) {
  void* arguments[] = {argument};
  void* argument_lists[] = {arguments};
  void* output_lists[] = {outputs.data()};
  Call<PJRT_LoadedExecutable_Execute_Args> execute;
  execute.args.executable = executable;
  execute.args.argument_lists = argument_lists;
  execute.args.num_devices = 1;
  execute.args.num_args = 1;
  execute.args.output_lists = output_lists;
  return Api().PJRT_LoadedExecutable_Execute(&execute.args);
}

void CreateClient() {
  Call<PJRT_Client_Create_Args> create;
  PJRT_NamedValue options[2]{};
  const char* names[] = {"num_devices", "memory_limit_bytes"};
  const int64_t values[] = {2, 10000};
  for (int i = 0; i < 2; ++i) {
    options[i].struct_size = sizeof(options[i]);
    options[i].name = const_cast<char*>(names[i]);
    options[i].name_size = std::strlen(names[i]);
    options[i].type = PJRT_NamedValue_kInt64;
    options[i]._anon5.int64_value = values[i];
  }
  create.args.create_options = options;
  create.args.num_options = 2;
  CHECK(Text(Api().PJRT_Client_Create(&create.args)).empty());
  client = create.args.client;
  Call<PJRT_Client_AddressableDevices_Args> found;
  found.args.client = client;
  CHECK(Api().PJRT_Client_AddressableDevices(&found.args) == nullptr);
  void** first = static_cast<void**>(found.args.addressable_devices);
  devices.assign(first, first + found.args.num_addressable_devices);
  CHECK(devices.size() == 2);
}

void ArraysAreChargedToTheByte() {
  const std::vector<unsigned char> bytes(700, 5);
  void *one, *other, *host;
  CHECK(Text(Put(bytes, &one)).empty());
  CHECK(InUse() == 700 && InUse(1) == 0);

  Call<PJRT_Device_AddressableMemories_Args> memories;
  memories.args.device = devices[0];
  CHECK(Api().PJRT_Device_AddressableMemories(&memories.args) == nullptr);
  CHECK(Text(Put(bytes, &host, static_cast<void**>(memories.args.memories)[1])).empty());
  CHECK(InUse() == 700);

  const std::vector<unsigned char> many(9301, 1);
  void* error = Put(many, &other);
  CHECK(Code(error) == PJRT_Error_Code_RESOURCE_EXHAUSTED);
  const std::string text = Text(error);
  CHECK(Has(text, "9301 bytes") && Has(text, "700 bytes") && Has(text, "of 10000 bytes"));
  CHECK(InUse() == 700);

  Call<PJRT_Buffer_Delete_Args> remove;
  remove.args.buffer = one;
  CHECK(Read(one, 700) == bytes && Read(host, 700) == bytes);
  CHECK(Api().PJRT_Buffer_Delete(&remove.args) == nullptr);
  CHECK(InUse() == 0);
  Destroy(one);
  Destroy(host);
  CHECK(InUse() == 0);
}

void AnErrorOfTheDriverComesThrough() {
  const std::vector<unsigned char> bytes(40, 5);
  void* buffer;
  CHECK(Text(Put(bytes, &buffer)).empty());
  Call<PJRT_Buffer_CopyToDevice_Args> copy;
  copy.args.buffer = buffer;
  copy.args.dst_device = devices[1];
  void* error = Api().PJRT_Buffer_CopyToDevice(&copy.args);
  CHECK(Code(error) == PJRT_Error_Code_INTERNAL);
  CHECK(Text(error) == "no peer copies");
  CHECK(InUse(1) == 0);
  CHECK(Read(buffer, 40) == bytes);
  Destroy(buffer);
  // And an entry that the driver lacks refuses with its name.
  Call<PJRT_Client_ProcessIndex_Args> index;
  CHECK(Has(Text(Api().PJRT_Client_ProcessIndex(&index.args)), "PJRT_Client_ProcessIndex"));
}

void LaunchesOverlapTheHostAndKeepTheirOrder() {
  void* executable;
  CHECK(Text(Compile({"add", 1, 100, 50, true}, &executable)).empty());
  pretend::HoldStreams();
  const std::vector<unsigned char> bytes(100, 0);
  void* buffer;
  CHECK(Text(Put(bytes, &buffer)).empty());
  std::vector<void*> outputs(1);
  for (int i = 0; i < 7; ++i) {  // returns though no stream moves
    CHECK(Text(Launch(executable, buffer, outputs)).empty());
    Destroy(buffer);
    buffer = outputs[0];
    CHECK(InUse() == 100 + 50 * (i + 1));  // a donated array once, and temporaries not yet free
  }
  pretend::ReleaseStreams();
  CHECK(Read(buffer, 100) == std::vector<unsigned char>(100, 7));
  CHECK(InUse() == 100);
  Destroy(buffer);
  DestroyExecutable(executable);
}

void ALaunchThatDoesNotFitLeavesNoTrace() {
  void* executable;
  CHECK(Text(Compile({"large", 3, 3000, 1000, true}, &executable)).empty());
  const std::vector<unsigned char> bytes(3000, 4);
  void* buffer;
  std::vector<void*> outputs(3);
  CHECK(Text(Put(bytes, &buffer)).empty());
  gcu::SetMemoryLimit(0, 9999);  // one less than argument, two new outputs and temporaries
  const int64_t refused = gcu::Count().out_of_memory;
  CHECK(Has(Text(Launch(executable, buffer, outputs)), "a launch of 'large'"));
  CHECK(gcu::Count().out_of_memory == refused + 1);
  CHECK(InUse() == 3000 && Read(buffer, 3000) == bytes);
  gcu::SetMemoryLimit(0, 10000);
  CHECK(Text(Launch(executable, buffer, outputs)).empty());
  CHECK(Read(outputs[2], 3000) == std::vector<unsigned char>(3000, 5));
  CHECK(InUse() == 9000);
  Destroy(buffer);
  for (void* output : outputs) Destroy(output);
  DestroyExecutable(executable);
  CHECK(InUse() == 0);
}

int RefuseSort(const void* code, size_t size, char* message, size_t room, double* flops) {
  CHECK(size == sizeof(pretend::Recipe));
  *flops = 12;
  if (std::strcmp(static_cast<const pretend::Recipe*>(code)->name, "sort") != 0) return 0;
  std::snprintf(message, room, "no sort here");
  return 1;
}

void TheOperationCheckIsAskedAndTheLogHasWhatItSays() {
  gcu::SetProgramCheck(RefuseSort);
  const int64_t refusals = gcu::Count().refusals, compiles = gcu::Count().compiles;
  void* executable;
  void* error = Compile({"sort", 1, 10, 0, false}, &executable);
  CHECK(Code(error) == PJRT_Error_Code_UNIMPLEMENTED && Text(error) == "no sort here");
  CHECK(Text(Compile({"dot", 1, 10, 0, false}, &executable)).empty());
  gcu::SetProgramCheck(nullptr);
  CHECK(gcu::Count().refusals == refusals + 1 && gcu::Count().compiles == compiles + 1);

  const std::vector<unsigned char> bytes(10, 1);
  void* buffer;
  std::vector<void*> outputs(1);
  CHECK(Text(Put(bytes, &buffer)).empty());
  const int64_t launches = gcu::Count().launches, reads = gcu::Count().device_to_host_bytes;
  CHECK(Text(Launch(executable, buffer, outputs)).empty());
  CHECK(Read(outputs[0], 10)[9] == 2);
  CHECK(gcu::Count().launches == launches + 1);
  CHECK(gcu::Count().device_to_host_bytes == reads + 10);
  gcu::Launch last;
  CHECK(gcu::Log().Copy(launches, &last, 1) == 1);
  CHECK(gcu::Log().ProgramName(last.program) == "dot" && last.flops == 12 && last.bytes == 20);
  Destroy(buffer);
  Destroy(outputs[0]);
  DestroyExecutable(executable);
}

void TheLogKeepsItsLastLaunches() {
  gcu::LaunchLog log;
  constexpr int64_t kMore = 10;
  for (size_t i = 0; i < gcu::LaunchLog::kCapacity + kMore; ++i) log.Add(gcu::Launch{});
  gcu::Launch first[3];
  CHECK(log.Copy(0, first, 3) == 3 && first[0].sequence == kMore && first[2].sequence == kMore + 2);
  CHECK(log.Copy(gcu::LaunchLog::kCapacity + kMore, first, 3) == 0);
  CHECK(log.ProgramName(7).empty());
}

void SixThreadsLeaveNoByteBehind() {
  gcu::SetMemoryLimit(0, 6000);  // so that some are refused
  void *keeps, *donates;
  CHECK(Text(Compile({"keeps", 2, 500, 300, false}, &keeps)).empty());
  CHECK(Text(Compile({"donates", 1, 500, 100, true}, &donates)).empty());
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 6; ++thread) {
    threads.emplace_back([=] {
      const std::vector<unsigned char> bytes(500, thread);
      for (int turn = 0; turn < 200; ++turn) {
        void* buffer;
        if (!Text(Put(bytes, &buffer)).empty()) continue;
        std::vector<void*> outputs(2, nullptr);
        int expected = thread;
        if (Text(Launch(turn % 2 ? keeps : donates, buffer, outputs)).empty()) {
          Destroy(buffer);
          buffer = outputs[0];
          ++expected;
        }
        InUse();
        gcu::Launch some[4];
        gcu::Log().Copy(turn, some, 4);
        CHECK(Read(buffer, 500) == std::vector<unsigned char>(500, expected));
        Destroy(buffer);
        if (outputs[1] != nullptr) Destroy(outputs[1]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(gcu::Count().out_of_memory > 0);
  DestroyExecutable(keeps);
  DestroyExecutable(donates);
}

}  // namespace

int main() {
  CreateClient();
  ArraysAreChargedToTheByte();
  AnErrorOfTheDriverComesThrough();
  LaunchesOverlapTheHostAndKeepTheirOrder();
  ALaunchThatDoesNotFitLeavesNoTrace();
  TheOperationCheckIsAskedAndTheLogHasWhatItSays();
  TheLogKeepsItsLastLaunches();
  SixThreadsLeaveNoByteBehind();
  Call<PJRT_Client_Destroy_Args> destroy;
  destroy.args.client = client;
  CHECK(Api().PJRT_Client_Destroy(&destroy.args) == nullptr);  // its streams are done now
  CHECK(gcu::LedgerOfDevice(devices[0])->state().in_use == 0);
  CHECK(pretend::NumObjects() == 0);
  std::printf("all right\n");
}
