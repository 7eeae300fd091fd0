// The attention kernel with AVX2, FMA and F16C: 8 lanes, register blocks of 6 x 2 vectors.

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "pallas_kernels/paged_attention/cpu_half.h"
#include "pallas_kernels/paged_attention/cpu_step.h"
#include "pallas_kernels/paged_attention/cpu_variants.h"

#define HALOGEN_TARGET "avx2,fma,f16c"
#include "pallas_kernels/target_begin.h"
//
#define HALOGEN_LANES 8
namespace halogen::paged_attention::avx2 {
namespace {
#include "pallas_kernels/paged_attention/cpu_lanes.h"
//
#include "pallas_kernels/paged_attention/cpu_product.h"
//
#include "pallas_kernels/paged_attention/cpu_tile.h"
//
#include "pallas_kernels/paged_attention/cpu_attend.h"
}  // namespace
}  // namespace halogen::paged_attention::avx2

namespace halogen::paged_attention {
using namespace avx2;
const Variant kAvx2Variant = {
    "AVX2", ScratchSize, PartSize, WriteTokens, AttendBlock, AttendTiles, FoldTiles,
};
}  // namespace halogen::paged_attention

#include "pallas_kernels/target_end.h"

#endif
