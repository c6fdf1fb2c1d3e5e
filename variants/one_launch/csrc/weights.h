// How weights are stored, and the product of a few of their rows with one input.
//
// Each kind answers the same questions: `Input` (an activation row made ready once per phase),
// `prepare`, and for a row of weights `block`, `fma`, `finish`. A sum runs through the same lanes in the
// same order however many rows or inputs are in flight, so a batch row equals the same row alone.
#pragma once

#include <cmath>

#include "vec.h"

namespace one_launch {

// [rows, cols] row-major, rows `row_bytes` apart.
struct Linear {
  const char* weight = nullptr;
  const float* scale = nullptr;  // int8: [rows]; int4: [rows, groups]
  const float* bias = nullptr;   // [rows] or absent
  int64_t rows = 0, cols = 0, row_bytes = 0, groups = 0;
};

// The model's own float32 tensors, in place.
struct Float32 {
  using Cache = Float32;  // how keys, values, embeddings and logits are stored beside such weights
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
  using Cache = BFloat16;
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
    if (count == kBlock) return {Words::loadu(p)};
    int32_t words[kLanes] = {};
    std::memcpy(words, p, count * sizeof(Scalar));
    return {Words::loadu(words)};
  }

#if defined(__AVX512BF16__)
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
#else
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
#endif
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

// Symmetric int8 of an activation row: x ~ scale * q with q in -127..127, as variants/precision.py defines it.
inline float quantise(const float* x, int64_t cols, int8_t* q) {
  float most = 0;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < cols; i++) most = std::max(most, std::fabs(x[i]));
  const float scale = std::max(most, 1e-30f) / 127.f;
  const Floats divisor(scale);
  alignas(64) int32_t rounded[kLanes];
  for (int64_t i = 0; i < cols; i += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, cols - i);
    const Floats r = (Floats::loadu(x + i, count) / divisor).round();
    at::vec::convert_to_int_of_same_size(r).store(rounded);
    for (int64_t j = 0; j < count; j++) q[i + j] = int8_t(rounded[j]);
  }
  std::fill(q + cols, q + round_up(cols, kPad), int8_t(0));
  return scale;
}

// int8 weights with one scale per row, int8 inputs with one scale; exact int32 sums in between.
struct Int8 {
  using Cache = Float32;
  using Sums = Words;
  static constexpr int kBlock = Bytes::kSize;
  struct Input {
    const int8_t* q;
    float scale;
  };
  static constexpr int64_t input_bytes(int64_t cols) { return round_up(cols, kPad); }

  static Input prepare(const float* x, int64_t cols, char* memory) {
    auto* q = reinterpret_cast<int8_t*>(memory);
    const float scale = quantise(x, cols, q);
    return {q, scale};
  }

  // unsigned times signed is what the instructions offer: |w| * (x with the sign of w). 127 * 127 * 2 fits.
  struct Block {
    Bytes w, size;
  };
  static Block block(const char* row, const float*, int64_t at, int64_t) {
    const Bytes w = Bytes::load(row + at);
    return {w, w.abs()};
  }
  static Sums fma(const Block& b, const Input& in, int64_t at, const Sums& sums) {
    return dot(sums, b.size, Bytes::load(in.q + at).with_sign_of(b.w));
  }
  static float finish(const Sums& sums, const Input& in, const float* scale) {
    int32_t lane[kLanes], total = 0;
    sums.store(lane);
    for (int32_t v : lane) total += v;
    return float(total) * (in.scale * *scale);
  }
};

// int4 weights in groups of 64 with a scale each, int8 inputs. 64 bytes hold two groups: the low nibbles
// are the first, the high nibbles the second. A nibble is the weight + 8, so 8 * sum(q) is taken off.
struct Int4 {
  using Cache = Float32;
  using Sums = Floats;
  static constexpr int kGroup = 64;
  static constexpr int kBlock = 2 * kGroup;
  static constexpr int kParts = kGroup / Bytes::kSize;
  struct Input {
    const int8_t* q;
    const int32_t* offset;  // [groups, kLanes]
    float scale;
  };
  static constexpr int64_t input_bytes(int64_t cols) {
    return round_up(cols, kPad) + round_up(cols, kPad) / kGroup * kLanes * sizeof(int32_t);
  }

  static Input prepare(const float* x, int64_t cols, char* memory) {
    auto* q = reinterpret_cast<int8_t*>(memory);
    const float scale = quantise(x, cols, q);
    const int64_t padded = round_up(cols, kPad);
    auto* offset = reinterpret_cast<int32_t*>(memory + padded);
    alignas(64) int8_t eight[Bytes::kSize];
    std::fill(eight, eight + Bytes::kSize, int8_t(8));
    for (int64_t at = 0; at < padded; at += kGroup) {
      Words sums(0);
      for (int64_t i = at; i < at + kGroup; i += Bytes::kSize) sums = dot(sums, Bytes::load(eight), Bytes::load(q + i));
      (Words(0) - sums).store(offset + at / kGroup * kLanes);
    }
    return {q, offset, scale};
  }

  struct Block {
    Bytes packed[kParts];
    const float* scale;
  };
  static Block block(const char* row, const float* scale, int64_t at, int64_t) {
    Block b;
    for (int part = 0; part < kParts; part++) b.packed[part] = Bytes::load(row + at / 2 + part * Bytes::kSize);
    b.scale = scale + at / kGroup;
    return b;
  }
  static Sums fma(const Block& b, const Input& in, int64_t at, Sums sums) {
    const int32_t* offset = in.offset + at / kGroup * kLanes;
    Words low = Words::loadu(offset), high = Words::loadu(offset + kLanes);
    for (int part = 0; part < kParts; part++) {
      const int8_t* q = in.q + at + part * Bytes::kSize;
      low = dot(low, b.packed[part].low_nibbles(), Bytes::load(q));
      high = dot(high, b.packed[part].high_nibbles(), Bytes::load(q + kGroup));
    }
    sums = at::vec::fmadd(at::vec::convert_to_fp_of_same_size<float>(low), Floats(b.scale[0]), sums);
    return at::vec::fmadd(at::vec::convert_to_fp_of_same_size<float>(high), Floats(b.scale[1]), sums);
  }
  static float finish(const Sums& sums, const Input& in, const float*) { return sum(sums) * in.scale; }
};

// out[row r][input b] of R rows and B inputs, each row of weights loaded once for all B.
template <class W, int R, int B>
inline void dot_rows(const char* const (&row)[R], const float* const (&scale)[R], const typename W::Input* in,
                     int64_t cols, float (&out)[R][B]) {
  typename W::Sums sums[R][B];
  for (auto& of_row : sums) {
    for (auto& s : of_row) s = typename W::Sums(0);
  }
  const auto add = [&](int64_t at, int64_t count) {
    for (int r = 0; r < R; r++) {
      const auto block = W::block(row[r], scale[r], at, count);
      for (int b = 0; b < B; b++) sums[r][b] = W::fma(block, in[b], at, sums[r][b]);
    }
  };
  int64_t at = 0;
  for (; at + W::kBlock <= cols; at += W::kBlock) add(at, W::kBlock);
  if (at < cols) add(at, cols - at);
  for (int r = 0; r < R; r++) {
    for (int b = 0; b < B; b++) out[r][b] = W::finish(sums[r][b], in[b], scale[r]);
  }
}

}  // namespace one_launch
