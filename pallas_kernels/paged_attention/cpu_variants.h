// The attention kernel in every instruction set of this architecture, and the choice among them.
//
// cpu_attend.h is compiled once per instruction set, each in a file of its own, so that one library
// runs on every machine of the architecture. What one variant computes is the same everywhere;
// between variants results differ by rounding.

#ifndef HALOGEN_PALLAS_KERNELS_PAGED_ATTENTION_CPU_VARIANTS_H_
#define HALOGEN_PALLAS_KERNELS_PAGED_ATTENTION_CPU_VARIANTS_H_

#include <cstdint>
#include <vector>

#include "pallas_kernels/paged_attention/cpu_step.h"

namespace halogen::paged_attention {

// `memory` is scratch of scratch_size floats, aligned to 64 bytes; `parts` holds part_size floats
// for every tile of a divided block.
struct Variant {
  const char* name;
  int64_t (*scratch_size)(const Step& step, int64_t num_rows);
  int64_t (*part_size)(const Step& step, int64_t num_rows);
  void (*write_tokens)(const Step& step, int64_t first, int64_t end);
  void (*attend_block)(const Step& step, const Block& block, const Block* after, float* memory);
  void (*attend_tiles)(const Step& step, const Block& block, int64_t first, int64_t end,
                       float* parts, float* memory);
  void (*fold_tiles)(const Step& step, const Block& block, float* parts, float* memory);
};

extern const Variant kAvx512Variant;
extern const Variant kAvx2Variant;
extern const Variant kPortableVariant;

// The variants that run on this machine, the fastest first.
inline std::vector<const Variant*> RunnableVariants() {
  std::vector<const Variant*> found;
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    found.push_back(&kAvx512Variant);
  }
  if (has_avx2) found.push_back(&kAvx2Variant);
#endif
  found.push_back(&kPortableVariant);
  return found;
}

}  // namespace halogen::paged_attention

#endif  // HALOGEN_PALLAS_KERNELS_PAGED_ATTENTION_CPU_VARIANTS_H_
