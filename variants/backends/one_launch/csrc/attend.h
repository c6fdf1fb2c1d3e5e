// The attention phase of one thread: heads made ready, new slots written, chunks of slots attended to.
#pragma once

#include "model.h"

namespace one_launch {

// Beside weights W, over a cache that is seen as S.
template <class W, class S>
class Attention {
  using Plain = typename W::Plain;
  using C = typename S::Kind;

 public:
  Attention(const Model& model, const Block& block, Scratch<W>& scratch, Own<W>& own, int64_t position)
      : m_(model), block_(block), s_(scratch), own_(own), position_(position) {}

  // lane: one KV head of one row. The last chunk appends to the cache first; nobody else reads that slot.
  void run(int64_t lane, int64_t chunk) const {
    const int64_t b = lane / m_.kv_heads, kv_head = lane % m_.kv_heads;
    const S keys(m_, block_.k, b, kv_head), values(m_, block_.v, b, kv_head);
    if (chunk == position_ / kChunk) {
      keys.write(position_, placed(head(b, m_.heads + kv_head), block_.k_norm));
      values.write(position_, head(b, m_.heads + m_.kv_heads + kv_head));
    }
    const int64_t sharing = m_.heads / m_.kv_heads, first = chunk * kChunk;
    const int64_t count = std::min(kChunk, position_ + 1 - first);
    const char* next = first + count <= position_ ? keys.row(first + count) : nullptr;
    for (int64_t g = 0; g < sharing; g += kGroupMost) {
      const int64_t query = kv_head * sharing + g, together = std::min<int64_t>(kGroupMost, sharing - g);
      typename C::Input queries[kGroupMost];
      Chunk* chunks[kGroupMost];
      for (int64_t i = 0; i < together; i++) {
        queries[i] = ready_query(b, query + i, i);
        chunks[i] = s_.chunk(m_, b, query + i, chunk);
      }
      attend_group(together, keys.from(first), values.from(first), count, next, queries, chunks);
    }
  }

 private:
  // Heads of queries, then of keys, then of values.
  const float* head(int64_t b, int64_t number) const {
    return s_.qkv.get() + b * s_.qkv_pitch + number * m_.head_dim;
  }

  // A head of queries or keys as attention takes it, normed and turned to its position; in this thread's row.
  float* placed(const float* head, const Norm& norm) const {
    float* row = own_.row.get();
    if (norm.weight) {
      rms_norm(head, norm, m_.head_dim, m_.epsilon, row);
    } else {
      std::copy(head, head + m_.head_dim, row);
    }
    if (m_.rope) {
      const auto* turns = reinterpret_cast<const typename Plain::Scalar*>(m_.rope);
      rotate<Plain>(row, turns + position_ * m_.head_dim, m_.head_dim / 2);
    }
    return row;
  }

  typename C::Input ready_query(int64_t b, int64_t query, int64_t i) const {
    float* row = placed(head(b, query), block_.q_norm);
    const float scale = 1.f / std::sqrt(static_cast<float>(m_.head_dim));
    for (int64_t d = 0; d < m_.head_dim; d++) row[d] *= scale;
    return C::prepare(row, m_.head_dim, own_.query_memory.get() + i * C::input_bytes(m_.head_dim));
  }

  const Model& m_;
  const Block& block_;
  Scratch<W>& s_;
  Own<W>& own_;
  const int64_t position_;
};

}  // namespace one_launch
