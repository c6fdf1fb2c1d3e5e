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

// A row of keys or values, written as it is stored.
template <class C>
inline void encode(const float* x, int64_t count, char* row, float* scale) {
  auto* to = reinterpret_cast<typename C::Scalar*>(row);
  if constexpr (kScaled<C>) {
    *scale = quantise(x, count, to);
  } else {
    for (int64_t d = 0; d < count; d++) to[d] = C::from_float(x[d]);
  }
}

// All keys or all values of a layer, and a scale for each slot and head where they are scaled.
struct Stored {
  char* values = nullptr;
  float* scales = nullptr;
};

// Where slots lie: [batch, kv_heads, capacity, head_dim], or in blocks [kv_heads, size, head_dim] by a table.
struct Layout {
  int64_t kv_heads = 0, head_dim = 0, capacity = 0;
  const int64_t* table = nullptr;   // [batch, blocks] numbers of blocks
  int64_t blocks = 0, size_log2 = 0;  // of a row; of a block
};

// The keys or values of one KV head of one row, stored as C, from some slot on.
template <class C>
class Slots {
 public:
  using Kind = C;

  Slots(const Layout& layout, const Stored& layer, int64_t b, int64_t kv_head) : head_dim_(layout.head_dim) {
    const int64_t before = (b * layout.kv_heads + kv_head) * layout.capacity;
    values_ = layer.values + before * row_bytes();
    if constexpr (kScaled<C>) scales_ = layer.scales + before;
  }

  Slots from(int64_t slot) const {
    Slots later = *this;
    later.values_ += slot * row_bytes();
    if constexpr (kScaled<C>) later.scales_ += slot;
    return later;
  }

  int64_t head_dim() const { return head_dim_; }
  int64_t row_bytes() const { return head_dim_ * sizeof(typename C::Scalar); }
  char* row(int64_t slot) const { return values_ + slot * row_bytes(); }

  // x[i] *= scale of slot i, for the first `count`.
  void scale(float* x, int64_t count) const {
    if constexpr (kScaled<C>) {
#pragma omp simd
      for (int64_t i = 0; i < count; i++) x[i] *= scales_[i];
    }
  }

  void write(int64_t slot, const float* x) const {
    encode<C>(x, head_dim_, row(slot), kScaled<C> ? scales_ + slot : nullptr);
  }

 private:
  int64_t head_dim_;
  char* values_;
  float* scales_ = nullptr;
};

// The same in blocks, which are looked up slot by slot.
template <class C>
class Pages {
 public:
  using Kind = C;

  Pages(const Layout& layout, const Stored& layer, int64_t b, int64_t kv_head)
      : layout_(layout), values_(layer.values), table_(layout.table + b * layout.blocks), kv_head_(kv_head) {}

  Pages from(int64_t slot) const {
    Pages later = *this;
    later.first_ += slot;
    return later;
  }

  int64_t head_dim() const { return layout_.head_dim; }
  int64_t row_bytes() const { return head_dim() * sizeof(typename C::Scalar); }

  char* row(int64_t slot) const {
    const int64_t at = first_ + slot, block = table_[at >> layout_.size_log2];
    const int64_t place = at & ((int64_t(1) << layout_.size_log2) - 1);
    return values_ + (((block * layout_.kv_heads + kv_head_) << layout_.size_log2) + place) * row_bytes();
  }

  void scale(float*, int64_t) const {}

  void write(int64_t slot, const float* x) const { encode<C>(x, head_dim(), row(slot), nullptr); }

 private:
  const Layout& layout_;
  char* values_;
  const int64_t* table_;
  int64_t kv_head_, first_ = 0;
};

}  // namespace one_launch
