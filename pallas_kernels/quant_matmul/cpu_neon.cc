// The multiplication with NEON and its dot product instruction (Armv8.2): 4 rows to a register.
//
// The instruction multiplies signed bytes. Codes of up to 6 bits are the same signed; those of 8
// bits have their zero, 128, taken off first.

#if defined(__aarch64__)

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#if defined(__linux__)
#include <sys/auxv.h>
#endif

#include "pallas_kernels/quant_matmul/quant_matmul.h"

#if defined(__clang__)
#define HALOGEN_TARGET "dotprod"
#else
#define HALOGEN_TARGET "arch=armv8.2-a+dotprod"
#endif
#include "pallas_kernels/target_begin.h"
//
#include "pallas_kernels/quant_matmul/kernel.h"

namespace halogen {
namespace {

struct Neon {
  static constexpr int kLanes = 4, kVectors = 4, kTile = 3, kTileOfTwo = 2, kPackedTiles = 1;
  using F = float32x4_t;
  using C = uint8x16_t;

  template <int kBits>
  static constexpr int UnpackedBits() {
    return kBits;
  }

  static F Zero() { return vdupq_n_f32(0); }
  static F Load(const float* at) { return vld1q_f32(at); }
  static void Store(float* at, F a) { vst1q_f32(at, a); }
  static F Broadcast(const float* at) { return vld1q_dup_f32(at); }
  static F Mul(F a, F b) { return vmulq_f32(a, b); }
  static F Sub(F a, F b) { return vsubq_f32(a, b); }
  static F Fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  template <int kType>
  static F LoadAs(const uint8_t* at) {
    F wide;
    uint16x4_t halves;
    if (kType == kF32) {
      std::memcpy(&wide, at, sizeof wide);
      return wide;
    }
    std::memcpy(&halves, at, sizeof halves);
    if (kType == kF16) return vcvt_f32_f16(vreinterpret_f16_u16(halves));
    return vreinterpretq_f32_u32(vshll_n_u16(halves, 16));
  }
  static F FromUnsigned(const uint8_t* at) {
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(FourBytes(at)))));
  }
  static F FromSigned(const uint8_t* at) {
    const int8x8_t four = vreinterpret_s8_u8(FourBytes(at));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(four))));
  }
  static uint8x8_t FourBytes(const uint8_t* at) {
    uint32_t four;
    std::memcpy(&four, at, 4);
    return vcreate_u8(four);
  }

  static C LoadCodes(const uint8_t* at) { return vld1q_u8(at); }
  // Four codes of activations in each lane.
  static C BroadcastCodes(const int8_t* at) {
    uint32_t four;
    std::memcpy(&four, at, 4);
    return vreinterpretq_u8_u32(vdupq_n_u32(four));
  }
  static void StoreCodes(uint8_t* at, C a) { vst1q_u8(at, a); }
  static C And(C a, int mask) { return vandq_u8(a, vdupq_n_u8(static_cast<uint8_t>(mask))); }
  static C Or(C a, C b) { return vorrq_u8(a, b); }
  static C Left(C a, int count) { return vshlq_u8(a, vdupq_n_s8(static_cast<int8_t>(count))); }
  static C Right(C a, int count) { return vshlq_u8(a, vdupq_n_s8(static_cast<int8_t>(-count))); }

  template <int kBits>
  struct Dot {
    struct Operand {
      int8x16_t codes;
      void Set(C unsigned_codes) {
        if (kBits == 8) unsigned_codes = veorq_u8(unsigned_codes, vdupq_n_u8(128));
        codes = vreinterpretq_s8_u8(unsigned_codes);
      }
    };
    int32x4_t sum;

    // A product of 8 bits subtracts the zero from the codes, so it starts from nothing.
    void Start(const int32_t* start) {
      sum = start && kBits != 8 ? vdupq_n_s32(*start) : vdupq_n_s32(0);
    }
    void Add(const Operand& operand, C x, int) {
      sum = vdotq_s32(sum, operand.codes, vreinterpretq_s8_u8(x));
    }
    void Append(const Dot& other) { sum = vaddq_s32(vshlq_n_s32(sum, 8), other.sum); }
    F Result() const { return vcvtq_f32_s32(sum); }
  };

  // The largest magnitude.
  static float Largest(const float* block) {
    int32x4_t largest = vdupq_n_s32(0);
    for (int i = 0; i < kBlock; i += kLanes) {
      const int32x4_t bits = vreinterpretq_s32_f32(vld1q_f32(block + i));
      largest = vmaxq_s32(largest, vandq_s32(bits, vdupq_n_s32(0x7fffffff)));
    }
    const int32_t top = vmaxvq_s32(largest);
    float result;
    std::memcpy(&result, &top, 4);
    return result;
  }

  // codes[i] = block[i] * inverse, to the nearest integer, ties to even; sums of its halves.
  static void Round(const float* block, float inverse, int8_t* codes, int32_t* sums) {
    int32x4_t rounded[8];
    for (int i = 0; i < 8; ++i) {
      rounded[i] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(block + i * 4), inverse));
    }
    Narrow(rounded, codes, sums);
  }

  // The same of 256 times what Round leaves over; at most 127 of either sign, since a sign may be
  // moved from a weight to a code.
  static void RoundRest(const float* block, float inverse, int8_t* codes, int32_t* sums) {
    int32x4_t rounded[8];
    for (int i = 0; i < 8; ++i) {
      const F number = vmulq_n_f32(vld1q_f32(block + i * 4), inverse);
      const F first = vcvtq_f32_s32(vcvtnq_s32_f32(number));
      const F rest = vmulq_n_f32(vsubq_f32(number, first), 256);
      rounded[i] = vminq_s32(vmaxq_s32(vcvtnq_s32_f32(rest), vdupq_n_s32(-127)),
                             vdupq_n_s32(127));
    }
    Narrow(rounded, codes, sums);
  }

  static void Narrow(const int32x4_t* rounded, int8_t* codes, int32_t* sums) {
    for (int half = 0; half < 2; ++half, rounded += 4) {
      const int16x8_t low = vcombine_s16(vmovn_s32(rounded[0]), vmovn_s32(rounded[1]));
      const int16x8_t high = vcombine_s16(vmovn_s32(rounded[2]), vmovn_s32(rounded[3]));
      vst1q_s8(codes + half * 16, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
      sums[half] = vaddvq_s32(vaddq_s32(vaddq_s32(rounded[0], rounded[1]),
                                        vaddq_s32(rounded[2], rounded[3])));
    }
  }
};

bool IsSupported() {
#if defined(__linux__)
  constexpr unsigned long kDotProduct = 1ul << 20;  // HWCAP_ASIMDDP
  return getauxval(AT_HWCAP) & kDotProduct;
#else
  return true;  // every Apple processor with this instruction set's name
#endif
}

}  // namespace

extern const InstructionSet kNeon = {"neon", IsSupported,
                                     {Neon::kTile, Neon::kTile, Neon::kTileOfTwo},
                                     Preparation<Neon>::Prepare, Kernel<Neon>::Multiply};

}  // namespace halogen

#include "pallas_kernels/target_end.h"

#endif  // __aarch64__
