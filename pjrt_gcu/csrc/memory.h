// Which buffer occupies how much of which device. Buffers are the driver's objects; this is what the
// plugin knows of them. Buffers in host memory are not charged.
#pragma once

#include <cstdint>
#include <string>

#include "ledger.h"

namespace gcu {

// The ledger of a device, by the device or by its memory space; null for host memory.
Ledger* LedgerOfDevice(const void* device);
Ledger* LedgerOfMemory(const void* memory);

// Announces a device of a new client: its ledger, and the memory spaces that it charges.
void AddDevice(const void* device, int id, int64_t limit);

// Changes the limit of the devices with this id, of every client.
void SetMemoryLimit(int device_id, int64_t limit);

// Takes note of a buffer whose bytes are charged to `ledger` already, and forgets it. Forget
// releases the bytes; a buffer that is not known is let pass.
void TrackBuffer(const void* buffer, Ledger* ledger, int64_t bytes);
void ForgetBuffer(const void* buffer);
// Like ForgetBuffer, without releasing: returns what to release. 0 for an unknown buffer.
int64_t TakeBuffer(const void* buffer);

// Charges a new buffer that the driver has made: asks it for device and size.
void* AdoptBuffer(void* buffer);

// What the driver says a buffer occupies, 0 where it cannot say.
int64_t BufferBytes(void* buffer);
// Whether a buffer was deleted or donated.
bool IsDeleted(void* buffer);

// Bytes of a dense array of a PJRT_Buffer_Type.
int64_t DenseBytes(uint32_t type, const int64_t* dims, size_t num_dims);

}  // namespace gcu
