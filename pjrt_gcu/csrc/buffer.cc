// Buffers: every entry that makes, copies or frees one. A new buffer is charged to its device before
// the driver makes it, so that a full device refuses it.
#include <string>

#include "call.h"
#include "counters.h"
#include "entries.h"
#include "error.h"
#include "memory.h"

namespace gcu {
namespace {

// Bytes charged for a buffer that is about to be made; given back unless it is kept.
class Reservation {
 public:
  ~Reservation() {
    if (ledger_ != nullptr && bytes_ != 0) ledger_->Adjust(-bytes_);
  }
  // Null for `ledger` = host memory, which is not charged.
  void* Reserve(Ledger* ledger, int64_t bytes, const char* purpose) {
    ledger_ = ledger;
    if (ledger == nullptr) return nullptr;
    if (void* error = ledger->TryCharge(bytes, purpose)) return error;
    bytes_ = bytes;
    return nullptr;
  }
  // The buffer is there: what the driver says it occupies replaces the reserved size.
  void Keep(void* buffer) {
    if (ledger_ == nullptr) return;
    const int64_t exact = BufferBytes(buffer);
    ledger_->Adjust(exact - bytes_);
    TrackBuffer(buffer, ledger_, exact);
    bytes_ = 0;
  }

 private:
  Ledger* ledger_ = nullptr;
  int64_t bytes_ = 0;
};

void* FromHostBuffer(PJRT_Client_BufferFromHostBuffer_Args* args) {
  const int64_t bytes =
      DenseBytes(args->type, static_cast<const int64_t*>(args->dims), args->num_dims);
  Reservation reservation;
  Ledger* ledger =
      args->memory != nullptr ? LedgerOfMemory(args->memory) : LedgerOfDevice(args->device);
  if (void* error = reservation.Reserve(ledger, bytes, "an array from the host")) return error;
  if (void* error = Below().PJRT_Client_BufferFromHostBuffer(args)) return error;
  Count().host_to_device++;
  Count().host_to_device_bytes += bytes;
  reservation.Keep(args->buffer);
  return nullptr;
}

void* CreateUninitialized(PJRT_Client_CreateUninitializedBuffer_Args* args) {
  const int64_t bytes =
      DenseBytes(args->shape_element_type, static_cast<const int64_t*>(args->shape_dims),
                 args->shape_num_dims);
  Reservation reservation;
  Ledger* ledger =
      args->memory != nullptr ? LedgerOfMemory(args->memory) : LedgerOfDevice(args->device);
  if (void* error = reservation.Reserve(ledger, bytes, "an uninitialised array")) return error;
  if (void* error = Below().PJRT_Client_CreateUninitializedBuffer(args)) return error;
  reservation.Keep(args->buffer);
  return nullptr;
}

// A copy between devices, or between a device's memory spaces.
template <class Args>
void* Copy(Args* args, Ledger* ledger, void* (*below)(Args*)) {
  const int64_t bytes = BufferBytes(args->buffer);
  Reservation reservation;
  if (void* error = reservation.Reserve(ledger, bytes, "a copy of an array")) return error;
  if (void* error = below(args)) return error;
  Count().device_to_device++;
  Count().device_to_device_bytes += bytes;
  reservation.Keep(args->dst_buffer);
  return nullptr;
}

void* CopyToDevice(PJRT_Buffer_CopyToDevice_Args* args) {
  return Copy(args, LedgerOfDevice(args->dst_device), Below().PJRT_Buffer_CopyToDevice);
}

void* CopyToMemory(PJRT_Buffer_CopyToMemory_Args* args) {
  return Copy(args, LedgerOfMemory(args->dst_memory), Below().PJRT_Buffer_CopyToMemory);
}

void* Bitcast(PJRT_Buffer_Bitcast_Args* args) {
  if (void* error = Below().PJRT_Buffer_Bitcast(args)) return error;
  if (IsDeleted(args->buffer)) ForgetBuffer(args->buffer);
  return AdoptBuffer(args->out_buffer);
}

void* Donate(PJRT_Buffer_DonateWithControlDependency_Args* args) {
  if (void* error = Below().PJRT_Buffer_DonateWithControlDependency(args)) return error;
  if (IsDeleted(args->buffer)) ForgetBuffer(args->buffer);
  return AdoptBuffer(args->out_buffer);
}

void* Delete(PJRT_Buffer_Delete_Args* args) {
  if (void* error = Below().PJRT_Buffer_Delete(args)) return error;
  ForgetBuffer(args->buffer);
  return nullptr;
}

void* Destroy(PJRT_Buffer_Destroy_Args* args) {
  ForgetBuffer(args->buffer);  // first: the address may be another's as soon as it is free
  return Below().PJRT_Buffer_Destroy(args);
}

}  // namespace

void InstallBufferEntries(PJRT_Api& table) {
  table.PJRT_Client_BufferFromHostBuffer = FromHostBuffer;
  table.PJRT_Client_CreateUninitializedBuffer = CreateUninitialized;
  table.PJRT_Buffer_CopyToDevice = CopyToDevice;
  table.PJRT_Buffer_CopyToMemory = CopyToMemory;
  table.PJRT_Buffer_Bitcast = Bitcast;
  table.PJRT_Buffer_DonateWithControlDependency = Donate;
  table.PJRT_Buffer_Delete = Delete;
  table.PJRT_Buffer_Destroy = Destroy;
}

}  // namespace gcu
