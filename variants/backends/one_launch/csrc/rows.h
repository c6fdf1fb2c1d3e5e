// What is done to one row of activations or logits: activations, norms, rotary positions, argmax.
#pragma once

#include <algorithm>
#include <cmath>

#include "product.h"

namespace one_launch {

struct Norm {
  const float *weight = nullptr, *bias = nullptr;  // [width]; without a bias it is an RMS norm
};

// GELU, tanh approximation, in place: x / 2 * (1 + tanh(u)), which is x / (1 + exp(-2u)).
inline void gelu(float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = std::min<int64_t>(kLanes, count - i);
    const Floats v = Floats::loadu(x + i, n);
    const Floats u = Floats(0.7978845608028654f) * (v + Floats(0.044715f) * v * v * v);
    (v / (Floats(1.f) + (Floats(-2.f) * u).exp())).store(x + i, n);
  }
}

// Gate and up alternate in x: out[i] = silu(x[2i]) * x[2i + 1].
inline void gated(const float* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = std::min<int64_t>(kLanes, count - i), first = std::min<int64_t>(kLanes, 2 * n);
    const auto [gate, up] = at::vec::deinterleave2(Floats::loadu(x + 2 * i, first),
                                                   Floats::loadu(x + 2 * i + kLanes, 2 * n - first));
    (gate / (Floats(1.f) + (Floats(-1.f) * gate).exp()) * up).store(out + i, n);
  }
}

// Rotary positions, in place: the pairs (i, i + half) turned by a row of the table, cosines then sines.
template <class Plain>
inline void rotate(float* x, const typename Plain::Scalar* turn, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    const float cos = Plain::to_float(turn[i]), sin = Plain::to_float(turn[half + i]), a = x[i], b = x[half + i];
    x[i] = a * cos - b * sin;
    x[half + i] = b * cos + a * sin;
  }
}

inline void rms_norm(const float* x, const Norm& norm, int64_t width, float epsilon, float* out) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < width; i++) squares += x[i] * x[i];
  const float inverse = 1.f / std::sqrt(squares / width + epsilon);
#pragma omp simd
  for (int64_t i = 0; i < width; i++) out[i] = x[i] * inverse * norm.weight[i];
}

inline void normalise(const float* x, const Norm& norm, int64_t width, float epsilon, float* out) {
  if (!norm.bias) return rms_norm(x, norm, width, epsilon, out);
  float total = 0, squares = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < width; i++) total += x[i];
  const float mean = total / width;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < width; i++) squares += (x[i] - mean) * (x[i] - mean);
  const float inverse = 1.f / std::sqrt(squares / width + epsilon);
#pragma omp simd
  for (int64_t i = 0; i < width; i++) out[i] = (x[i] - mean) * inverse * norm.weight[i] + norm.bias[i];
}

struct Best {
  float value = 0;
  int64_t index = -1;  // none yet
};

// The first of the greatest; the first NaN where there is one, as in torch.argmax.
inline Best best_of(const float* values, Range range) {
  if (range.begin == range.end) return {};
  float most = values[range.begin];
  bool nan = false;
#pragma omp simd reduction(max : most) reduction(| : nan)
  for (int64_t i = range.begin; i < range.end; i++) {
    most = std::max(most, values[i]);
    nan |= values[i] != values[i];
  }
  int64_t i = range.begin;
  while (nan ? values[i] == values[i] : values[i] != most) i++;
  return {values[i], i};
}

// The first of the greatest, as above, of two sets of values.
inline Best better(const Best& a, const Best& b) {
  if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a_nan == b_nan && (a_nan || a.value == b.value)) return a.index < b.index ? a : b;
  return a_nan || a.value > b.value ? a : b;
}

}  // namespace one_launch
