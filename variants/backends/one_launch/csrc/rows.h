// What is done to one row of activations or logits: GELU, layer norm, argmax.
#pragma once

#include <algorithm>
#include <cmath>

#include "product.h"

namespace one_launch {

struct Norm {
  const float *weight = nullptr, *bias = nullptr;  // [width]
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

inline void layer_norm(const float* x, const Norm& norm, int64_t width, float epsilon, float* out) {
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
