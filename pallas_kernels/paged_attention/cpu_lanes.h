// Vectors of kLanes floats for one instruction set: the few operations that attention needs.
//
// Included by one translation unit per instruction set, inside a namespace of its own and with
// HALOGEN_LANES defined; hence no include guard. Plain arithmetic uses the compiler's vector types.
// A multiply-add is fused where the instruction set can, and only where the code says so.

#define HALOGEN_INLINE static inline __attribute__((always_inline))

constexpr int kLanes = HALOGEN_LANES;
typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef int32_t IntVec __attribute__((vector_size(4 * kLanes)));
typedef uint16_t HalfVec __attribute__((vector_size(2 * kLanes)));

// Subtracting 0 keeps every value, -0 too, so that only a broadcast is left.
HALOGEN_INLINE Vec Splat(float value) { return value - Vec{}; }

HALOGEN_INLINE Vec Load(const float* from) {
  Vec vec;
  memcpy(&vec, from, sizeof vec);
  return vec;
}

HALOGEN_INLINE void Store(float* to, Vec vec) { memcpy(to, &vec, sizeof vec); }

HALOGEN_INLINE Vec Max(Vec a, Vec b) { return a > b ? a : b; }

// At most `limit` of either sign; NaN stays.
HALOGEN_INLINE Vec Limit(Vec vec, float limit) {
  const Vec top = Splat(limit), below = vec > top ? top : vec;
  return below < -top ? -top : below;
}

HALOGEN_INLINE IntVec Bits(Vec vec) { return (IntVec)vec; }

// a * b + c
HALOGEN_INLINE Vec Fma(Vec a, Vec b, Vec c) {
#if HALOGEN_LANES == 16
  return _mm512_fmadd_ps(a, b, c);
#elif HALOGEN_LANES == 8
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

HALOGEN_INLINE float LargestLane(Vec vec) {
#if HALOGEN_LANES == 16
  return _mm512_reduce_max_ps(vec);
#else
  float largest = vec[0];
  for (int i = 1; i < kLanes; ++i) largest = vec[i] > largest ? vec[i] : largest;
  return largest;
#endif
}

HALOGEN_INLINE float SumOfLanes(Vec vec) {
#if HALOGEN_LANES == 16
  return _mm512_reduce_add_ps(vec);
#else
  float sum = 0;
  for (int i = 0; i < kLanes / 4; ++i) {
    sum += (vec[4 * i] + vec[4 * i + 1]) + (vec[4 * i + 2] + vec[4 * i + 3]);
  }
  return sum;
#endif
}

// 2^x for x <= 0, 0 near the end of the exponents' range; relative error 1e-7, exactly 1 at 0.
HALOGEN_INLINE Vec Exp2(Vec x) {
#if HALOGEN_LANES == 16
  const Vec whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Vec f = x - whole;
#else
  const Vec is_tiny_below = Splat(-125.0f);
  const Vec shift = Splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec clamped = Max(x, is_tiny_below);
  const Vec shifted = clamped + shift;
  const Vec f = clamped - (shifted - shift);
#endif
  Vec p = Splat(0.000154614478f);
  p = Fma(p, f, Splat(0.00133908668f));
  p = Fma(p, f, Splat(0.00961805694f));
  p = Fma(p, f, Splat(0.0555035695f));
  p = Fma(p, f, Splat(0.240226507f));
  p = Fma(p, f, Splat(0.693147182f));
  p = Fma(p, f, Splat(1.0f));
#if HALOGEN_LANES == 16
  return _mm512_scalef_ps(p, whole);
#else
  const Vec scaled = (Vec)(Bits(p) + ((Bits(shifted) - Bits(shift)) << 23));
  return x < is_tiny_below ? Vec{} : scaled;
#endif
}

// Relative error 2e-7: an odd polynomial near 0, where the exponential form would cancel.
HALOGEN_INLINE Vec Tanh(Vec x) {
  const Vec size = x < 0.0f ? -x : x;
  const Vec square = x * x;
  Vec p = Splat(-5.70498872745e-3f);
  p = Fma(p, square, Splat(2.06390887954e-2f));
  p = Fma(p, square, Splat(-5.37397155531e-2f));
  p = Fma(p, square, Splat(1.33314422036e-1f));
  p = Fma(p, square, Splat(-3.33332819422e-1f));
  const Vec near_zero = Fma(p * square, x, x);
  const Vec e = Exp2(size * -2.88539008f);  // e^(-2|x|)
  const Vec ratio = (1.0f - e) / (1.0f + e);
  return size < 0.625f ? near_zero : (x < 0.0f ? -ratio : ratio);
}

struct Float32 {
  using Element = float;
  HALOGEN_INLINE Vec Get(const Element* from) { return Load(from); }
  HALOGEN_INLINE void Put(Element* to, Vec vec) { Store(to, vec); }
};

struct BFloat16 {
  using Element = uint16_t;
  HALOGEN_INLINE Vec Get(const Element* from) {
#if HALOGEN_LANES == 16
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
    return (Vec)_mm512_slli_epi32(wide, 16);
#elif HALOGEN_LANES == 8
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
    return (Vec)_mm256_slli_epi32(wide, 16);
#else
    HalfVec half;
    memcpy(&half, from, sizeof half);
    return (Vec)(__builtin_convertvector(half, IntVec) << 16);
#endif
  }
  // Rounds to nearest, ties to even; NaN stays NaN.
  HALOGEN_INLINE void Put(Element* to, Vec vec) {
    const IntVec bits = Bits(vec);
    const IntVec rounded = bits + 0x7fff + ((bits >> 16) & 1);
    const IntVec chosen = vec == vec ? rounded : IntVec{} + 0x7fc00000;
    const HalfVec half = __builtin_convertvector((chosen >> 16) & 0xffff, HalfVec);
    memcpy(to, &half, sizeof half);
  }
};

struct Float16 {
  using Element = uint16_t;
#if HALOGEN_LANES == 16
  HALOGEN_INLINE Vec Get(const Element* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
  }
  HALOGEN_INLINE void Put(Element* to, Vec vec) {
    _mm256_storeu_si256((__m256i*)to, _mm512_cvtps_ph(vec, _MM_FROUND_TO_NEAREST_INT));
  }
#elif HALOGEN_LANES == 8
  HALOGEN_INLINE Vec Get(const Element* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
  }
  HALOGEN_INLINE void Put(Element* to, Vec vec) {
    _mm_storeu_si128((__m128i*)to, _mm256_cvtps_ph(vec, _MM_FROUND_TO_NEAREST_INT));
  }
#elif defined(__aarch64__)
  HALOGEN_INLINE Vec Get(const Element* from) {
    return (Vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
  }
  HALOGEN_INLINE void Put(Element* to, Vec vec) {
    vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)vec)));
  }
#else
  HALOGEN_INLINE Vec Get(const Element* from) {
    Vec vec;
    for (int i = 0; i < kLanes; ++i) vec[i] = FromHalf(from[i]);
    return vec;
  }
  HALOGEN_INLINE void Put(Element* to, Vec vec) {
    for (int i = 0; i < kLanes; ++i) to[i] = ToHalf(vec[i]);
  }
#endif
};

// The first `count` elements of a vector, the rest 0; touches no element past them.
template <typename T>
HALOGEN_INLINE Vec GetPart(const typename T::Element* from, int64_t count) {
  if (count >= kLanes) return T::Get(from);
  typename T::Element part[kLanes] = {};
  memcpy(part, from, count * sizeof part[0]);
  return T::Get(part);
}

template <typename T>
HALOGEN_INLINE void PutPart(typename T::Element* to, Vec vec, int64_t count) {
  if (count >= kLanes) return T::Put(to, vec);
  typename T::Element part[kLanes];
  T::Put(part, vec);
  memcpy(to, part, count * sizeof part[0]);
}

// rows[i][j] <- rows[j][i]
HALOGEN_INLINE void Transpose(Vec (&rows)[kLanes]) {
#if HALOGEN_LANES == 16
  Vec t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    rows[i] = (Vec)_mm512_unpacklo_pd((__m512d)t[i], (__m512d)t[i + 2]);
    rows[i + 1] = (Vec)_mm512_unpackhi_pd((__m512d)t[i], (__m512d)t[i + 2]);
    rows[i + 2] = (Vec)_mm512_unpacklo_pd((__m512d)t[i + 1], (__m512d)t[i + 3]);
    rows[i + 3] = (Vec)_mm512_unpackhi_pd((__m512d)t[i + 1], (__m512d)t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    rows[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    rows[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
  }
#elif HALOGEN_LANES == 8
  Vec t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    rows[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    rows[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    rows[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    rows[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm256_permute2f128_ps(rows[i], rows[i + 4], 0x20);
    t[i + 4] = _mm256_permute2f128_ps(rows[i], rows[i + 4], 0x31);
  }
  for (int i = 0; i < 8; ++i) rows[i] = t[i];
#else
  for (int i = 0; i < kLanes; ++i) {
    for (int j = i + 1; j < kLanes; ++j) {
      const float lane = rows[i][j];
      rows[i][j] = rows[j][i];
      rows[j][i] = lane;
    }
  }
#endif
}
