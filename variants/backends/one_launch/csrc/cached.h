// How keys and values are stored: as the model's own numbers (weights.h), or as bytes with a scale for each slot.
#pragma once

#include "quantised.h"

namespace one_launch {

// A value is scale * q, with one scale per token and head (variants/slots/kv.py). Bytes are widened in registers; the
// scale multiplies a whole score, and the weight of a whole slot.
struct ScaledBytes : Float32 {
  using Scalar = int8_t;
  static Block block(const char* row, const float*, int64_t at, int64_t count) {
    if (count == kBlock) return {widened(row + at)};
    char some[kBlock] = {};
    std::memcpy(some, row + at, count);
    return {widened(some)};
  }
};

template <class C>
inline constexpr bool kScaled = std::is_same_v<C, ScaledBytes>;
template <class C>
inline constexpr bool kNarrow = sizeof(typename C::Scalar) < sizeof(float);

// All keys or all values of a layer: [batch, kv_heads, capacity, head_dim], and [batch, kv_heads, capacity].
struct Stored {
  char* values = nullptr;
  float* scales = nullptr;  // absent where values have none
};

// Those of one KV head of one row, stored as C, from some slot on.
template <class C>
class Slots {
 public:
  Slots(const Stored& layer, int64_t before, int64_t head_dim)
      : values_(layer.values + before * head_dim * sizeof(typename C::Scalar)),
        scales_(layer.scales ? layer.scales + before : nullptr), head_dim_(head_dim) {}

  Slots from(int64_t slot) const { return {{values_, scales_}, slot, head_dim_}; }
  int64_t head_dim() const { return head_dim_; }
  int64_t row_bytes() const { return head_dim_ * sizeof(typename C::Scalar); }
  const char* row(int64_t slot) const { return values_ + slot * row_bytes(); }

  // x[i] *= scale of slot i, for the first `count`.
  void scale(float* x, int64_t count) const {
    if constexpr (kScaled<C>) {
#pragma omp simd
      for (int64_t i = 0; i < count; i++) x[i] *= scales_[i];
    }
  }

  void write(int64_t slot, const float* row) const {
    auto* to = reinterpret_cast<typename C::Scalar*>(values_) + slot * head_dim_;
    if constexpr (kScaled<C>) {
      scales_[slot] = quantise(row, head_dim_, to);
    } else {
      for (int64_t d = 0; d < head_dim_; d++) to[d] = C::from_float(row[d]);
    }
  }

 private:
  char* values_;
  float* scales_;
  int64_t head_dim_;
};

}  // namespace one_launch
