// The attention kernel with AVX-512: 16 lanes, register blocks of 6 x 4 vectors.

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "pallas_kernels/paged_attention/cpu_half.h"
#include "pallas_kernels/paged_attention/cpu_step.h"
#include "pallas_kernels/paged_attention/cpu_variants.h"

#define HALOGEN_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"
#include "pallas_kernels/target_begin.h"
//
#define HALOGEN_LANES 16
namespace halogen::paged_attention::avx512 {
namespace {
#include "pallas_kernels/paged_attention/cpu_lanes.h"
//
#include "pallas_kernels/paged_attention/cpu_product.h"
//
#include "pallas_kernels/paged_attention/cpu_tile.h"
//
#include "pallas_kernels/paged_attention/cpu_attend.h"
}  // namespace
}  // namespace halogen::paged_attention::avx512

namespace halogen::paged_attention {
using namespace avx512;
const Variant kAvx512Variant = {
    "AVX-512", ScratchSize, PartSize, WriteTokens, AttendBlock, AttendTiles, FoldTiles,
};
}  // namespace halogen::paged_attention

#include "pallas_kernels/target_end.h"

#endif
