// Transfer managers: arrays that arrive from the host in pieces.
#include "call.h"
#include "counters.h"
#include "entries.h"
#include "memory.h"

namespace gcu {
namespace {

void* TransferData(PJRT_AsyncHostToDeviceTransferManager_TransferData_Args* args) {
  if (void* error = Below().PJRT_AsyncHostToDeviceTransferManager_TransferData(args)) return error;
  Count().host_to_device++;
  Count().host_to_device_bytes += args->transfer_size;
  return nullptr;
}

void* TransferLiteral(PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args* args) {
  if (void* error = Below().PJRT_AsyncHostToDeviceTransferManager_TransferLiteral(args)) {
    return error;
  }
  Count().host_to_device++;
  Count().host_to_device_bytes += DenseBytes(
      args->shape_element_type, static_cast<const int64_t*>(args->shape_dims),
      args->shape_num_dims);
  return nullptr;
}

// The buffer is handed out: from here on it has an owner, who frees it.
void* RetrieveBuffer(PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args* args) {
  if (void* error = Below().PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer(args)) {
    return error;
  }
  return AdoptBuffer(args->buffer_out);
}

}  // namespace

void InstallTransferEntries(PJRT_Api& table) {
  table.PJRT_AsyncHostToDeviceTransferManager_TransferData = TransferData;
  table.PJRT_AsyncHostToDeviceTransferManager_TransferLiteral = TransferLiteral;
  table.PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer = RetrieveBuffer;
}

}  // namespace gcu
