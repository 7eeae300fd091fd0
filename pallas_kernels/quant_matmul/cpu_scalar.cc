// The multiplication in plain C++: right on every machine, and vectorised by the compiler where it
// can.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#define HALOGEN_UNROLL  // here it makes the compilation five times longer and nothing faster
#include "pallas_kernels/quant_matmul/kernel.h"

namespace halogen {
namespace {

struct Scalar {
  static constexpr int kLanes = 16, kVectors = 1, kTile = 2, kTileOfTwo = 1, kPackedTiles = 1;
  struct F {
    float lane[kLanes];
  };
  struct C {
    uint32_t lane[kLanes];
  };

  template <int kBits>
  static constexpr int UnpackedBits() {
    return 8;
  }

  template <typename Function>
  static inline F Make(Function value) {
    F result;
    for (int i = 0; i < kLanes; ++i) result.lane[i] = value(i);
    return result;
  }
  template <typename Function>
  static inline C MakeCodes(Function value) {
    C result;
    for (int i = 0; i < kLanes; ++i) result.lane[i] = value(i);
    return result;
  }

  static F Zero() { return F{}; }
  static F Load(const float* at) {
    F result;
    std::memcpy(&result, at, sizeof result);
    return result;
  }
  static void Store(float* at, const F& a) { std::memcpy(at, &a, sizeof a); }
  static F Broadcast(const float* at) {
    return Make([at](int) { return *at; });
  }
  static F Mul(const F& a, const F& b) {
    return Make([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static F Sub(const F& a, const F& b) {
    return Make([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static F Fma(const F& a, const F& b, const F& c) {
    return Make([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
  }
  template <int kType>
  static F LoadAs(const uint8_t* at) {
    if (kType == kF32) {
      F result;
      std::memcpy(&result, at, sizeof result);
      return result;
    }
    uint16_t half[kLanes];
    std::memcpy(half, at, sizeof half);
    return Make([&](int i) {
      return kType == kBf16 ? Bf16ToFloat(half[i]) : HalfToFloat(half[i]);
    });
  }
  static F FromUnsigned(const uint8_t* at) {
    return Make([at](int i) { return static_cast<float>(at[i]); });
  }
  static F FromSigned(const uint8_t* at) {
    return Make([at](int i) { return static_cast<float>(static_cast<int8_t>(at[i])); });
  }

  static C LoadCodes(const uint8_t* at) {
    C result;
    std::memcpy(&result, at, sizeof result);
    return result;
  }
  // Four codes of activations in each lane.
  static C BroadcastCodes(const int8_t* at) {
    uint32_t four;
    std::memcpy(&four, at, 4);
    return MakeCodes([four](int) { return four; });
  }
  static void StoreCodes(uint8_t* at, const C& a) { std::memcpy(at, &a, sizeof a); }
  static C And(const C& a, uint32_t mask) {
    return MakeCodes([&](int i) { return a.lane[i] & mask * 0x01010101u; });
  }
  static C Or(const C& a, const C& b) {
    return MakeCodes([&](int i) { return a.lane[i] | b.lane[i]; });
  }
  static C Left(const C& a, int count) {
    return MakeCodes([&](int i) { return a.lane[i] << count; });
  }
  static C Right(const C& a, int count) {
    return MakeCodes([&](int i) { return a.lane[i] >> count; });
  }

  template <int kBits>
  struct Dot {
    struct Operand {
      C codes;
      void Set(const C& unsigned_codes) { codes = unsigned_codes; }
    };
    int32_t lane[kLanes];

    void Start(const int32_t* start) {
      for (int i = 0; i < kLanes; ++i) lane[i] = start ? *start : 0;
    }
    void Add(const Operand& operand, const C& x, int) {
      for (int i = 0; i < kLanes; ++i) {
        for (int bit = 0; bit < 32; bit += 8) {
          const auto code = static_cast<int32_t>((operand.codes.lane[i] >> bit) & 0xff);
          lane[i] += code * static_cast<int8_t>(x.lane[i] >> bit);
        }
      }
    }
    // 256 times this, and another.
    void Append(const Dot& other) {
      for (int i = 0; i < kLanes; ++i) lane[i] = 256 * lane[i] + other.lane[i];
    }
    F Result() const {
      return Make([this](int i) { return static_cast<float>(lane[i]); });
    }
  };

  // The largest magnitude.
  static float Largest(const float* block) {
    int32_t largest = 0;
    for (int i = 0; i < kBlock; ++i) {
      int32_t bits;
      std::memcpy(&bits, block + i, 4);
      largest = std::max(largest, bits & 0x7fffffff);
    }
    float result;
    std::memcpy(&result, &largest, 4);
    return result;
  }

  // codes[i] = block[i] * inverse, to the nearest integer, ties to even; sums of its halves.
  static void Round(const float* block, float inverse, int8_t* codes, int32_t* sums) {
    sums[0] = sums[1] = 0;
    for (int i = 0; i < kBlock; ++i) {
      codes[i] = static_cast<int8_t>(std::nearbyint(block[i] * inverse));
      sums[i / 16] += codes[i];
    }
  }

  // The same of 256 times what Round leaves over; at most 127 of either sign, since a sign may be
  // moved from a weight to a code.
  static void RoundRest(const float* block, float inverse, int8_t* codes, int32_t* sums) {
    sums[0] = sums[1] = 0;
    for (int i = 0; i < kBlock; ++i) {
      const float number = block[i] * inverse;
      const float rest = std::nearbyint((number - std::nearbyint(number)) * 256.0f);
      codes[i] = static_cast<int8_t>(std::min(127.0f, std::max(-127.0f, rest)));
      sums[i / 16] += codes[i];
    }
  }
};

bool IsSupported() { return true; }

}  // namespace

extern const InstructionSet kScalar = {"scalar", IsSupported, {Scalar::kTile, Scalar::kTile, Scalar::kTileOfTwo},
                                       Preparation<Scalar>::Prepare, Kernel<Scalar>::Multiply};

}  // namespace halogen
