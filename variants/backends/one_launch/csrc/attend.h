// The attention phase of one thread: heads made ready, new slots written, chunks of slots attended to. A row of the
// pass is one new token of one row of the batch.
#pragma once

#include "model.h"

namespace one_launch {

// Beside weights W, over a cache that is seen as S.
template <class W, class S>
class Attention {
  using Plain = typename W::Plain;
  using C = typename S::Kind;

 public:
  // `each` new tokens of every row of the batch, the first at `position`.
  Attention(const Model& model, const Block& block, Scratch<W>& scratch, Own<W>& own, int64_t position, int64_t each)
      : m_(model), block_(block), s_(scratch), own_(own), position_(position), each_(each) {}

  // The new tokens' slots of a lane: one KV head of one row of the batch.
  void append(int64_t lane) const {
    const int64_t b = lane / m_.kv_heads, kv_head = lane % m_.kv_heads;
    const S keys(m_, block_.k, b, kv_head), values(m_, block_.v, b, kv_head);
    for (int64_t i = 0; i < each_; i++) {
      const int64_t row = b * each_ + i, slot = position_ + i;
      keys.write(slot, placed(head(row, m_.heads + kv_head), slot, block_.k_norm));
      values.write(slot, head(row, m_.heads + m_.kv_heads + kv_head));
    }
  }

  // The queries of a lane over one chunk of slots: every new token sees those up to its own.
  void run(int64_t lane, int64_t chunk) const {
    const int64_t b = lane / m_.kv_heads, kv_head = lane % m_.kv_heads;
    const S keys(m_, block_.k, b, kv_head), values(m_, block_.v, b, kv_head);
    const int64_t sharing = m_.heads / m_.kv_heads, first = chunk * kChunk, end = first + kChunk;
    const int64_t behind = std::max<int64_t>(0, first - position_);  // tokens that end before this chunk
    const char* next = end < position_ + each_ ? keys.row(end) : nullptr;
    const int64_t all = (each_ - behind) * sharing;
    for (int64_t g = 0; g < all; g += kGroupMost) {
      const int64_t together = std::min<int64_t>(kGroupMost, all - g);
      Query<C> queries[kGroupMost];
      for (int64_t i = 0; i < together; i++) {
        const int64_t token = behind + (g + i) / sharing, query = kv_head * sharing + (g + i) % sharing;
        const int64_t row = b * each_ + token, slot = position_ + token;
        const int64_t seen = std::min(kChunk, slot + 1 - first);
        queries[i] = {ready_query(row, slot, query, i), seen, s_.chunk(m_, row, query, chunk)};
      }
      attend_group(together, keys.from(first), values.from(first), g + together < all ? nullptr : next, queries);
    }
  }

 private:
  // Heads of queries, then of keys, then of values.
  const float* head(int64_t row, int64_t number) const {
    return s_.qkv.get() + row * s_.qkv_pitch + number * m_.head_dim;
  }

  // A head of queries or keys as attention takes it, normed and turned to its position; in this thread's row.
  float* placed(const float* head, int64_t position, const Norm& norm) const {
    float* row = own_.row.get();
    if (norm.weight) {
      rms_norm(head, norm, m_.head_dim, m_.epsilon, row);
    } else {
      std::copy(head, head + m_.head_dim, row);
    }
    if (m_.rope) {
      const auto* turns = reinterpret_cast<const typename Plain::Scalar*>(m_.rope);
      rotate<Plain>(row, turns + position * m_.head_dim, m_.head_dim / 2);
    }
    return row;
  }

  typename C::Input ready_query(int64_t row, int64_t position, int64_t query, int64_t i) const {
    float* turned = placed(head(row, query), position, block_.q_norm);
    const float scale = 1.f / std::sqrt(static_cast<float>(m_.head_dim));
    for (int64_t d = 0; d < m_.head_dim; d++) turned[d] *= scale;
    return C::prepare(turned, m_.head_dim, own_.query_memory.get() + i * C::input_bytes(m_.head_dim));
  }

  const Model& m_;
  const Block& block_;
  Scratch<W>& s_;
  Own<W>& own_;
  const int64_t position_, each_;
};

}  // namespace one_launch
