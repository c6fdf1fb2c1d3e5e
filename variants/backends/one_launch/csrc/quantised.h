// int8 and int4 weights, with the arithmetic that variants/slots/precision.py defines: activations become int8 as
// well, so that the sums are exact integers.
#pragma once

#include <cmath>

#include "weights.h"

namespace one_launch {

// Symmetric int8 of a row: x ~ scale * q with q in -127..127, as variants/slots/quantised.py defines it.
inline float quantise(const float* x, int64_t cols, int8_t* q) {
  float most = 0;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < cols; i++) most = std::max(most, std::fabs(x[i]));
  const float scale = std::max(most, 1e-30f) / 127.f;
#pragma omp simd
  for (int64_t i = 0; i < cols; i++) q[i] = int8_t(int32_t(std::nearbyintf(x[i] / scale)));
  return scale;
}

// An activation row, padded with zeros.
inline float quantise_input(const float* x, int64_t cols, int8_t* q) {
  std::fill(q + cols, q + round_up(cols, kPad), int8_t(0));
  return quantise(x, cols, q);
}

// int8 weights with one scale per row, int8 inputs with one scale; exact int32 sums in between.
struct Int8 {
  using Plain = Float32;
  using Sums = Words;
  static constexpr int kBlock = Bytes::kSize;
  struct Input {
    const int8_t *q, *size;  // size = |q|
    float scale;
  };
  static constexpr int64_t input_bytes(int64_t cols) { return 2 * round_up(cols, kPad); }

  static Input prepare(const float* x, int64_t cols, char* memory) {
    auto* q = reinterpret_cast<int8_t*>(memory);
    auto* size = q + round_up(cols, kPad);
    const float scale = quantise_input(x, cols, q);
    for (int64_t i = 0; i < round_up(cols, kPad); i++) size[i] = std::abs(q[i]);
    return {q, size, scale};
  }

  // unsigned times signed is what the instructions offer: |x| * (w with the sign of x). 127 * 127 * 2 fits.
  struct Block {
    Bytes w;
  };
  static Block block(const char* row, const float*, int64_t at, int64_t) {
    ask_ahead(row + at);
    return {Bytes::load(row + at)};
  }
  static Sums fma(const Block& b, const Input& in, int64_t at, const Sums& sums) {
    return dot(sums, Bytes::load(in.size + at), b.w.with_sign_of(Bytes::load(in.q + at)));
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
  using Plain = Float32;
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
    const float scale = quantise_input(x, cols, q);
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
    ask_ahead(row + at / 2);
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

}  // namespace one_launch
