// What AVX2 and AVX-VNNI share: everything but the dot product of codes.

namespace halogen {
namespace {

struct Avx2Registers {
  static constexpr int kLanes = 8;
  using F = __m256;
  using C = __m256i;

  static F Zero() { return _mm256_setzero_ps(); }
  static F Load(const float* at) { return _mm256_loadu_ps(at); }
  static void Store(float* at, F a) { _mm256_storeu_ps(at, a); }
  static F Broadcast(const float* at) { return _mm256_broadcast_ss(at); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  template <int kType>
  static F LoadAs(const uint8_t* at) {
    if (kType == kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(at));
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    if (kType == kF16) return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  static F FromUnsigned(const uint8_t* at) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
  }
  static F FromSigned(const uint8_t* at) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
  }

  static C LoadCodes(const uint8_t* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  }
  // Four codes of activations in each lane.
  static C BroadcastCodes(const int8_t* at) {
    int32_t four;
    std::memcpy(&four, at, 4);
    return _mm256_set1_epi32(four);
  }
  static void StoreCodes(uint8_t* at, C a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), a);
  }
  static C And(C a, int mask) { return _mm256_and_si256(a, _mm256_set1_epi8(mask)); }
  static C Or(C a, C b) { return _mm256_or_si256(a, b); }
  static C Left(C a, int count) { return _mm256_slli_epi16(a, count); }
  static C Right(C a, int count) { return _mm256_srli_epi16(a, count); }

  // The largest magnitude.
  static float Largest(const float* block) {
    __m256i largest = _mm256_setzero_si256();
    for (int i = 0; i < kBlock; i += kLanes) {
      const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + i));
      largest = _mm256_max_epi32(largest, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
    }
    const __m128i half = _mm_max_epi32(_mm256_castsi256_si128(largest),
                                       _mm256_extracti128_si256(largest, 1));
    const __m128i two = _mm_max_epi32(half, _mm_unpackhi_epi64(half, half));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(two, _mm_shuffle_epi32(two, 1))));
  }

  static int32_t Total(__m256i a) {
    const __m128i half =
        _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    const __m128i two = _mm_add_epi32(half, _mm_unpackhi_epi64(half, half));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
  }

  // codes[i] = block[i] * inverse, to the nearest integer, ties to even; sums of its halves.
  static void Round(const float* block, float inverse, int8_t* codes, int32_t* sums) {
    const F factor = _mm256_set1_ps(inverse);
    __m256i rounded[4];
    for (int i = 0; i < 4; ++i) {
      rounded[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(block + i * 8), factor));
    }
    Narrow(rounded, codes, sums);
  }

  // The same of 256 times what Round leaves over; at most 127 of either sign, since a sign may be
  // moved from a weight to a code.
  static void RoundRest(const float* block, float inverse, int8_t* codes, int32_t* sums) {
    const F factor = _mm256_set1_ps(inverse);
    __m256i rounded[4];
    for (int i = 0; i < 4; ++i) {
      const F number = _mm256_mul_ps(_mm256_loadu_ps(block + i * 8), factor);
      const F first = _mm256_cvtepi32_ps(_mm256_cvtps_epi32(number));
      const F rest = _mm256_mul_ps(_mm256_sub_ps(number, first), _mm256_set1_ps(256));
      rounded[i] = _mm256_min_epi32(
          _mm256_max_epi32(_mm256_cvtps_epi32(rest), _mm256_set1_epi32(-127)),
          _mm256_set1_epi32(127));
    }
    Narrow(rounded, codes, sums);
  }

  static void Narrow(const __m256i* rounded, int8_t* codes, int32_t* sums) {
    sums[0] = Total(_mm256_add_epi32(rounded[0], rounded[1]));
    sums[1] = Total(_mm256_add_epi32(rounded[2], rounded[3]));
    // Packing works within halves of 128 bits; the permutation puts the runs of four in order.
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(rounded[0], rounded[1]),
                                             _mm256_packs_epi32(rounded[2], rounded[3]));
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(codes),
        _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
  }
};

}  // namespace
}  // namespace halogen
