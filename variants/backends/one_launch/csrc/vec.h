// Vectors: ATen's portable float vectors, and the one integer operation that they lack,
// a dot product of bytes. The widest instructions that the compiler was allowed to use are taken.
#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define CPU_CAPABILITY AVX512
#define CPU_CAPABILITY_AVX512
#elif defined(__AVX2__) && defined(__FMA__)
#define CPU_CAPABILITY AVX2
#define CPU_CAPABILITY_AVX2
#else
#define CPU_CAPABILITY DEFAULT
#define CPU_CAPABILITY_DEFAULT
#endif

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

namespace one_launch {

using Floats = at::vec::Vectorized<float>;
using Words = at::vec::Vectorized<int32_t>;
constexpr int kLanes = Floats::size();
constexpr int64_t kLine = 64;  // bytes of a cache line

// Inputs of every product are padded with zeros to this many elements: a whole block of the widest kernel.
constexpr int64_t kPad = 128;

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Vectors made one by one: for an array of default ones GCC 12 emits a block store that takes longer to start than a
// short row to multiply.
template <class V, size_t N>
std::array<V, N> zeros() {
  return []<size_t... I>(std::index_sequence<I...>) {
    return std::array<V, N>{(static_cast<void>(I), V(0))...};
  }(std::make_index_sequence<N>());
}

inline float sum(const Floats& v) {
  return at::vec::vec_reduce_all<float>([](Floats a, Floats b) { return a + b; }, v);
}

// Bytes: sums of four products in each int32 lane, and kLanes of them as floats.
#if defined(CPU_CAPABILITY_AVX512)

inline Floats widened(const void* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
}

struct Bytes {
  static constexpr int kSize = 64;
  __m512i v;
  static Bytes load(const void* p) { return {_mm512_loadu_si512(p)}; }
  Bytes low_nibbles() const { return {_mm512_and_si512(v, _mm512_set1_epi8(15))}; }
  Bytes high_nibbles() const { return {_mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15))}; }
  Bytes with_sign_of(Bytes s) const {  // s = 0 leaves a value that is multiplied by 0
    return {_mm512_mask_sub_epi8(v, _mm512_movepi8_mask(s.v), _mm512_setzero_si512(), v)};
  }
};

inline Words dot(Words sums, Bytes u, Bytes s) {  // u unsigned, s signed; no pair may pass 32767
#if defined(__AVX512VNNI__)
  return _mm512_dpbusd_epi32(sums, u.v, s.v);
#else
  return _mm512_add_epi32(
      sums, _mm512_madd_epi16(_mm512_maddubs_epi16(u.v, s.v), _mm512_set1_epi16(1)));
#endif
}

#elif defined(CPU_CAPABILITY_AVX2)

inline Floats widened(const void* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
}

struct Bytes {
  static constexpr int kSize = 32;
  __m256i v;
  static Bytes load(const void* p) { return {_mm256_loadu_si256(static_cast<const __m256i*>(p))}; }
  Bytes low_nibbles() const { return {_mm256_and_si256(v, _mm256_set1_epi8(15))}; }
  Bytes high_nibbles() const { return {_mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15))}; }
  Bytes with_sign_of(Bytes s) const { return {_mm256_sign_epi8(v, s.v)}; }
};

inline Words dot(Words sums, Bytes u, Bytes s) {
#if defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(sums, u.v, s.v);
#else
  return _mm256_add_epi32(
      sums, _mm256_madd_epi16(_mm256_maddubs_epi16(u.v, s.v), _mm256_set1_epi16(1)));
#endif
}

#else  // plain C++, which compilers turn into the byte products of other machines

inline Floats widened(const void* p) {
  float lane[kLanes];
  for (int i = 0; i < kLanes; i++) lane[i] = static_cast<const int8_t*>(p)[i];
  return Floats::loadu(lane);
}

struct Bytes {
  static constexpr int kSize = 4 * kLanes;
  int8_t v[kSize];
  static Bytes load(const void* p) {
    Bytes b;
    std::memcpy(b.v, p, kSize);
    return b;
  }
  template <class F>
  Bytes map(F f) const {
    Bytes b;
    for (int i = 0; i < kSize; i++) b.v[i] = f(i);
    return b;
  }
  Bytes low_nibbles() const { return map([this](int i) { return int8_t(v[i] & 15); }); }
  Bytes high_nibbles() const { return map([this](int i) { return int8_t((v[i] >> 4) & 15); }); }
  Bytes with_sign_of(Bytes s) const { return map([&](int i) { return int8_t(s.v[i] < 0 ? -v[i] : v[i]); }); }
};

inline Words dot(Words sums, Bytes u, Bytes s) {
  int32_t lane[kLanes];
  sums.store(lane);
  for (int i = 0; i < Bytes::kSize; i++) lane[i / 4] += uint8_t(u.v[i]) * s.v[i];
  return Words::loadu(lane);
}

#endif

}  // namespace one_launch
