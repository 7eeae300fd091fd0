#include "error.h"

#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "call.h"
#include "entries.h"

namespace gcu {
namespace {

struct Error {
  int code;
  std::string message;
};

class OwnErrors {
 public:
  void* Add(int code, std::string message) {
    auto error = std::make_unique<Error>(Error{code, std::move(message)});
    void* key = error.get();
    std::lock_guard<std::mutex> lock(mutex_);
    errors_.emplace(key, std::move(error));
    return key;
  }
  // Null for an error of the driver. The caller owns an own error until it destroys it.
  const Error* Find(const void* key) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = errors_.find(key);
    return found == errors_.end() ? nullptr : found->second.get();
  }
  bool Remove(const void* key) {
    std::lock_guard<std::mutex> lock(mutex_);
    return errors_.erase(key) != 0;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, std::unique_ptr<Error>> errors_;
};

OwnErrors& Own() {
  static OwnErrors* errors = new OwnErrors;  // outlives static destructors of other libraries
  return *errors;
}

void Destroy(PJRT_Error_Destroy_Args* args) {
  if (!Own().Remove(args->error)) Below().PJRT_Error_Destroy(args);
}

void Message(PJRT_Error_Message_Args* args) {
  if (const Error* error = Own().Find(args->error)) {
    args->message = const_cast<char*>(error->message.data());
    args->message_size = error->message.size();
  } else {
    Below().PJRT_Error_Message(args);
  }
}

void* GetCode(PJRT_Error_GetCode_Args* args) {
  const Error* error = Own().Find(args->error);
  if (error == nullptr) return Below().PJRT_Error_GetCode(args);
  args->code = error->code;
  return nullptr;
}

void* ForEachPayload(PJRT_Error_ForEachPayload_Args* args) {
  return Own().Find(args->error) ? nullptr : Below().PJRT_Error_ForEachPayload(args);
}

}  // namespace

void* MakeError(int code, std::string message) { return Own().Add(code, std::move(message)); }

void DestroyError(void* error) {
  if (error == nullptr) return;
  Call<PJRT_Error_Destroy_Args> call;
  call.args.error = error;
  Destroy(&call.args);
}

std::string ErrorMessage(void* error) {
  Call<PJRT_Error_Message_Args> call;
  call.args.error = error;
  Message(&call.args);
  return std::string(static_cast<const char*>(call.args.message), call.args.message_size);
}

int ErrorCode(void* error) {
  Call<PJRT_Error_GetCode_Args> call;
  call.args.error = error;
  DestroyError(GetCode(&call.args));
  return static_cast<int>(call.args.code);
}

void InstallErrorEntries(PJRT_Api& table) {
  table.PJRT_Error_Destroy = Destroy;
  table.PJRT_Error_Message = Message;
  table.PJRT_Error_GetCode = GetCode;
  table.PJRT_Error_ForEachPayload = ForEachPayload;
}

}  // namespace gcu
