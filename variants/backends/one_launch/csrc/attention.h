// Attention of one query per row over the cache, in chunks of slots that threads share out.
//
// A chunk yields the running softmax's state (largest score, sum, weighted values); `combine` joins the
// chunks of a head. Chunks depend on the context only, so neither batch nor threads change a result.
#pragma once

#include <algorithm>
#include <cmath>

#include "product.h"

namespace one_launch {

constexpr int64_t kChunk = 256;  // slots: long stretches to read, yet keys and values fit into a second-level cache
constexpr int kGroupMost = 4;    // query heads that share one pass over the keys

struct Chunk {
  float largest, sum;
  float values[];  // [head_dim], not yet divided by the sum
};

inline int64_t chunk_floats(int64_t head_dim) { return round_up(2 + head_dim, 16); }

// scores[g][i] = input g . key i, for `count` keys that lie `head_dim` apart. Their values come next: they are
// fetched meanwhile, into the second-level cache, since they would drive each other out of the first.
template <class KV, int G>
inline void score(const char* keys, const char* values, int64_t count, int64_t head_dim, const typename KV::Input* q,
                  float (&scores)[kGroupMost][kChunk]) {
  const int64_t stride = head_dim * sizeof(typename KV::Scalar);
  const auto rows = [&]<int R>(std::integral_constant<int, R>, int64_t first, int64_t apart) {
    const float* none[R] = {};
    const char* row[R];
    float out[R][G];
    for (int r = 0; r < R; r++) {
      const int64_t offset = (first + r * apart) * stride;
      row[r] = keys + offset;
      for (int64_t at = 0; at < stride; at += kLine) __builtin_prefetch(values + offset + at, 0, 2);
    }
    dot_rows<KV>(row, none, q, head_dim, out);
    for (int r = 0; r < R; r++) {
      for (int g = 0; g < G; g++) scores[g][first + r * apart] = out[r][g];
    }
  };
  const int64_t apart = count / kPlaces;
  for (int64_t i = 0; i < apart; i++) rows(std::integral_constant<int, kPlaces>(), i, apart);
  for (int64_t i = kPlaces * apart; i < count; i++) rows(std::integral_constant<int, 1>(), i, 0);
}

// Scores become weights exp(score - largest). Returns their sum.
inline float softmax_weights(float* scores, int64_t count, float largest) {
  const Floats top(largest);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = std::min<int64_t>(kLanes, count - i);
    (Floats::loadu(scores + i, n) - top).exp().store(scores + i, n);
  }
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < count; i++) total += scores[i];
  return total;
}

// out[d] = sum over i of weight[i] * value i [d], N vectors of d at once.
template <class KV, int N>
inline void weigh_columns(const char* values, int64_t stride, const float* weight, int64_t count, int64_t width,
                          float* out) {
  typename KV::Expanded sums[N];
  for (auto& s : sums) s = KV::zero();
  const auto add = [&](int64_t i) {
    const Floats w(weight[i]);
    for (int j = 0; j < N; j++) {
      const int64_t at = j * KV::kBlock;
      const auto block = KV::block(values + i * stride, nullptr, at, std::min<int64_t>(KV::kBlock, width - at));
      KV::add_scaled(block, w, sums[j]);
    }
  };
  const int64_t apart = count / kPlaces;
  for (int64_t i = 0; i < apart; i++) {
    for (int place = 0; place < kPlaces; place++) add(i + place * apart);
  }
  for (int64_t i = kPlaces * apart; i < count; i++) add(i);
  for (int j = 0; j < N; j++) {
    const int64_t at = j * KV::kBlock;
    KV::store(sums[j], out + at, std::min<int64_t>(KV::kBlock, width - at));
  }
}

template <class KV>
inline void weigh(const char* values, const float* weight, int64_t count, int64_t head_dim, float* out) {
  constexpr int kMost = 4;
  const int64_t size = sizeof(typename KV::Scalar), stride = head_dim * size;
  int64_t at = 0;
  for (; at + kMost * KV::kBlock <= head_dim; at += kMost * KV::kBlock) {
    weigh_columns<KV, kMost>(values + at * size, stride, weight, count, kMost * KV::kBlock, out + at);
  }
  for (; at < head_dim; at += KV::kBlock) {
    const int64_t width = std::min<int64_t>(KV::kBlock, head_dim - at);
    weigh_columns<KV, 1>(values + at * size, stride, weight, count, width, out + at);
  }
}

// G query heads over `count` slots of their common key head; chunk_of(g) is where head g's result goes.
template <class KV, int G, class ChunkOf>
inline void attend_chunk(const char* keys, const char* values, int64_t count, int64_t head_dim,
                         const typename KV::Input* q, ChunkOf chunk_of) {
  alignas(64) float scores[kGroupMost][kChunk];
  score<KV, G>(keys, values, count, head_dim, q, scores);
  for (int g = 0; g < G; g++) {
    Chunk& chunk = *chunk_of(g);
    chunk.largest = *std::max_element(scores[g], scores[g] + count);
    chunk.sum = softmax_weights(scores[g], count, chunk.largest);
    weigh<KV>(values, scores[g], count, head_dim, chunk.values);
  }
}

// Joins `n` chunks, `stride` floats apart, into out [head_dim].
inline void combine(const float* chunks, int64_t n, int64_t stride, int64_t head_dim, float* out) {
  const auto chunk = [&](int64_t i) { return reinterpret_cast<const Chunk*>(chunks + i * stride); };
  float largest = chunk(0)->largest;
  for (int64_t i = 1; i < n; i++) largest = std::max(largest, chunk(i)->largest);
  float total = 0;
  std::fill(out, out + head_dim, 0.f);
  for (int64_t i = 0; i < n; i++) {
    const float weight = std::exp(chunk(i)->largest - largest);
    total += weight * chunk(i)->sum;
    const float* values = chunk(i)->values;
#pragma omp simd
    for (int64_t d = 0; d < head_dim; d++) out[d] += weight * values[d];
  }
#pragma omp simd
  for (int64_t d = 0; d < head_dim; d++) out[d] /= total;
}

}  // namespace one_launch
