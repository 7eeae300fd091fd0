// The attention kernel for every processor: 4 lanes of the compiler's vector types, NEON included.

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "pallas_kernels/paged_attention/cpu_half.h"
#include "pallas_kernels/paged_attention/cpu_step.h"
#include "pallas_kernels/paged_attention/cpu_variants.h"

#define HALOGEN_LANES 4
namespace halogen::paged_attention::portable {
namespace {
#include "pallas_kernels/paged_attention/cpu_lanes.h"
//
#include "pallas_kernels/paged_attention/cpu_product.h"
//
#include "pallas_kernels/paged_attention/cpu_tile.h"
//
#include "pallas_kernels/paged_attention/cpu_attend.h"
}  // namespace
}  // namespace halogen::paged_attention::portable

namespace halogen::paged_attention {
using namespace portable;
const Variant kPortableVariant = {
    "portable", ScratchSize, PartSize, WriteTokens, AttendBlock, AttendTiles, FoldTiles,
};
}  // namespace halogen::paged_attention
