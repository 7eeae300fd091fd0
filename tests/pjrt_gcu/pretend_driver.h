// A driver without XLA for tests of the plugin: devices whose streams are threads, arrays of bytes,
// and programs that add one to each byte of their first argument.
//
// It is as careless as a driver may be (no locks around what the interface leaves to the caller), so
// that a sanitizer sees what the plugin does wrong.
#pragma once

#include <cstdint>
#include <string>

namespace pretend {

// What Compile reads as its program. Sizes in bytes; every output has `output_bytes`.
struct Recipe {
  char name[16];
  int64_t num_outputs;
  int64_t output_bytes;
  int64_t temporary_bytes;
  bool donates;  // the first argument becomes the first output
};

// Holds back the work of every stream, and lets it go on.
void HoldStreams();
void ReleaseStreams();

// Objects of the driver (buffers, events, errors) that nobody has destroyed.
int64_t NumObjects();

}  // namespace pretend
