// How weights are stored, and the product of a few of their rows with one input.
//
// Each kind answers the same questions: `Input` (an activation row made ready once per phase),
// `prepare`, and for a row of weights `block`, `fma`, `finish`. A sum runs through the same lanes in the
// same order however many rows or inputs are in flight, so a batch row equals the same row alone.
#pragma once

#include <algorithm>

#include "vec.h"

namespace one_launch {

// Asks for what a row's reader needs next. Narrow weights take so many instructions per byte that few reads are under
// way at a time; a row ends soon, and what follows is the next one. Float32 streams at full speed without it.
inline void ask_ahead(const char* p) { __builtin_prefetch(p + 512); }

// [rows, cols] row-major, rows `row_bytes` apart.
struct Linear {
  const char* weight = nullptr;
  const float* scale = nullptr;  // int8: [rows]; int4: [rows, groups]
  const float* bias = nullptr;   // [rows] or absent
  int64_t rows = 0, cols = 0, row_bytes = 0, groups = 0;
};

// The model's own float32 tensors, in place.
struct Float32 {
  using Plain = Float32;  // how embeddings and logits are stored beside such weights, and the cache by default
  using Scalar = float;
  using Sums = Floats;
  static constexpr int kBlock = kLanes;
  struct Input {
    const float* x;
  };
  static constexpr int64_t input_bytes(int64_t cols) { return round_up(cols, kPad) * sizeof(float); }

  static Input prepare(const float* x, int64_t cols, char* memory) {
    auto* copy = reinterpret_cast<float*>(memory);
    std::memcpy(copy, x, cols * sizeof(float));
    std::fill(copy + cols, copy + round_up(cols, kPad), 0.f);
    return {copy};
  }

  struct Block {
    Floats w;
  };
  static Block block(const char* row, const float*, int64_t at, int64_t count) {
    const float* p = reinterpret_cast<const float*>(row) + at;
    return {count == kBlock ? Floats::loadu(p) : Floats::loadu(p, count)};
  }
  static Sums fma(const Block& b, const Input& in, int64_t at, const Sums& sums) {
    return at::vec::fmadd(b.w, Floats::loadu(in.x + at), sums);
  }
  static float finish(const Sums& sums, const Input&, const float*) { return sum(sums); }

  // The other way round, for attention's values: sums over rows, kept apart by column.
  using Expanded = Floats;
  static Expanded zero() { return Floats(0.f); }
  static void add_scaled(const Block& b, const Floats& by, Expanded& sums) { sums = at::vec::fmadd(b.w, by, sums); }
  static void store(const Expanded& sums, float* out, int64_t count) { sums.store(out, count); }

  static float to_float(float v) { return v; }
  static float from_float(float v) { return v; }
};

// The model's own bfloat16 tensors, in place. A pair of neighbours fills one 32-bit word, so a shift and a
// mask widen them without shuffles; inputs are kept split into even and odd elements to match.
struct BFloat16 {
  using Plain = BFloat16;
  using Scalar = uint16_t;
  using Sums = Floats;
  static constexpr int kBlock = 2 * kLanes;
  struct Input {
    const float* x;
  };
  static constexpr int64_t input_bytes(int64_t cols) { return round_up(cols, kPad) * sizeof(float); }

  static Floats even(Words pairs) { return at::vec::cast<float>(pairs << Words(16)); }
  static Floats odd(Words pairs) { return at::vec::cast<float>(pairs & Words(int32_t(0xffff0000))); }

  struct Block {
    Words pairs;
  };
  static Block block(const char* row, const float*, int64_t at, int64_t count) {
    const char* p = row + at * sizeof(Scalar);
    ask_ahead(p);
    if (count == kBlock) return {Words::loadu(p)};
    int32_t words[kLanes] = {};
    std::memcpy(words, p, count * sizeof(Scalar));
    return {Words::loadu(words)};
  }

  static Input prepare(const float* x, int64_t cols, char* memory) {
    auto* copy = reinterpret_cast<float*>(memory);
    std::fill(copy + cols / kBlock * kBlock, copy + round_up(cols, kPad), 0.f);
    int64_t at = 0;
    for (; at + kBlock <= cols; at += kBlock) {
      const auto [evens, odds] = at::vec::deinterleave2(Floats::loadu(x + at), Floats::loadu(x + at + kLanes));
      evens.store(copy + at);
      odds.store(copy + at + kLanes);
    }
    for (int64_t i = at; i < cols; i++) copy[at + i % 2 * kLanes + (i - at) / 2] = x[i];
    return {copy};
  }
  static Sums fma(const Block& b, const Input& in, int64_t at, const Sums& sums) {
    const Sums half = at::vec::fmadd(even(b.pairs), Floats::loadu(in.x + at), sums);
    return at::vec::fmadd(odd(b.pairs), Floats::loadu(in.x + at + kLanes), half);
  }
  static float finish(const Sums& sums, const Input&, const float*) { return sum(sums); }

  struct Expanded {
    Floats even, odd;
  };
  static Expanded zero() { return {Floats(0.f), Floats(0.f)}; }
  static void add_scaled(const Block& b, const Floats& by, Expanded& sums) {
    sums.even = at::vec::fmadd(even(b.pairs), by, sums.even);
    sums.odd = at::vec::fmadd(odd(b.pairs), by, sums.odd);
  }
  static void store(const Expanded& sums, float* out, int64_t count) {
    float parts[2][kLanes];
    sums.even.store(parts[0]);
    sums.odd.store(parts[1]);
    for (int64_t i = 0; i < count; i++) out[i] = parts[i % 2][i / 2];
  }

  static float to_float(Scalar v) {
    const uint32_t bits = uint32_t(v) << 16;
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
  }
  static Scalar from_float(float v) {  // round to nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &v, sizeof bits);
    if (v != v) return 0x7fc0;
    return Scalar((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
};

// As weights, where the machine multiplies pairs of them. The instruction takes bfloat16 on both sides, so
// activations are rounded too, as PyTorch's own kernels do; queries are not, since a cache may be beside exact weights.
#if defined(__AVX512BF16__)
struct BFloat16Weights : BFloat16 {
  static Input prepare(const float* x, int64_t cols, char* memory) {
    auto* copy = reinterpret_cast<Scalar*>(memory);
    for (int64_t i = 0; i < cols; i++) copy[i] = from_float(x[i]);
    std::fill(copy + cols, copy + round_up(cols, kPad), Scalar(0));
    return {reinterpret_cast<const float*>(copy)};
  }
  static Sums fma(const Block& b, const Input& in, int64_t at, const Sums& sums) {
    const __m512i x = _mm512_loadu_si512(reinterpret_cast<const Scalar*>(in.x) + at);
    return _mm512_dpbf16_ps(sums, (__m512bh)(__m512i)b.pairs, (__m512bh)x);
  }
};
#else
using BFloat16Weights = BFloat16;
#endif

}  // namespace one_launch
