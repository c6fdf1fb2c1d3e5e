// Attention of the new tokens' queries over the cache, in chunks of slots that threads share out.
//
// A chunk yields the running softmax's state (largest score, sum, weighted values); `combine` joins the
// chunks of a head. Chunks depend on the context only, so neither batch nor threads, nor how many tokens are new, change
// a result.
#pragma once

#include <algorithm>
#include <cmath>

#include "cached.h"
#include "product.h"

namespace one_launch {

constexpr int64_t kChunk = 256;  // slots: long stretches to read, yet keys and values fit into a second-level cache
constexpr int kGroupMost = 4;    // queries that share one pass over the keys

// Asks for what is read soon, into the second-level cache.
inline void ask_for(const char* p, int64_t bytes) {
  for (int64_t at = 0; p && at < bytes; at += kLine) __builtin_prefetch(p + at, 0, 2);
}

struct Chunk {
  float largest, sum;
  float values[];  // [head_dim], not yet divided by the sum
};

inline int64_t chunk_floats(int64_t head_dim) { return round_up(2 + head_dim, 16); }

// scores[g][i] = input g . key i, for `count` keys. Their values come next: they are fetched meanwhile, into the
// second-level cache, since they would drive each other out of the first. Narrow keys were fetched before, and are
// taken as they follow each other.
template <class S, int G>
inline void score(const S& keys, const S& values, int64_t count, const typename S::Kind::Input* q,
                  float (&scores)[kGroupMost][kChunk]) {
  using C = typename S::Kind;
  const auto rows = [&]<int R>(std::integral_constant<int, R>, int64_t first, int64_t apart) {
    const float* none[R] = {};
    const char* row[R];
    float out[R][G];
    for (int r = 0; r < R; r++) {
      row[r] = keys.row(first + r * apart);
      if constexpr (!kNarrow<C>) ask_for(values.row(first + r * apart), keys.row_bytes());
    }
    if constexpr (kNarrow<C>) ask_for(values.row(first), R * keys.row_bytes());
    dot_rows<C>(row, none, q, keys.head_dim(), out);
    for (int r = 0; r < R; r++) {
      for (int g = 0; g < G; g++) scores[g][first + r * apart] = out[r][g];
    }
  };
  const int64_t groups = count / kPlaces;
  for (int64_t i = 0; i < groups; i++) {
    rows(std::integral_constant<int, kPlaces>(), kNarrow<C> ? i * kPlaces : i, kNarrow<C> ? 1 : groups);
  }
  for (int64_t i = kPlaces * groups; i < count; i++) rows(std::integral_constant<int, 1>(), i, 0);
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

inline float largest_of(const float* scores, int64_t count) {
  float largest = scores[0];
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; i++) largest = std::max(largest, scores[i]);
  return largest;
}

// out[d] = sum over i of weight[i] * value i [d], for N vectors of d from `first` on.
template <class S, int N>
inline void weigh_columns(const S& values, int64_t first, const float* weight, int64_t count, int64_t width,
                          float* out) {
  using C = typename S::Kind;
  typename C::Expanded sums[N];
  for (auto& s : sums) s = C::zero();
  const auto add = [&](int64_t i) {
    const Floats w(weight[i]);
    for (int j = 0; j < N; j++) {
      const int64_t at = j * C::kBlock;
      const auto block = C::block(values.row(i), nullptr, first + at, std::min<int64_t>(C::kBlock, width - at));
      C::add_scaled(block, w, sums[j]);
    }
  };
  const int64_t apart = count / kPlaces;
  for (int64_t i = 0; i < apart; i++) {
    for (int place = 0; place < kPlaces; place++) add(i + place * apart);
  }
  for (int64_t i = kPlaces * apart; i < count; i++) add(i);
  for (int j = 0; j < N; j++) {
    const int64_t at = j * C::kBlock;
    C::store(sums[j], out + first + at, std::min<int64_t>(C::kBlock, width - at));
  }
}

template <class S>
inline void weigh(const S& values, const float* weight, int64_t count, float* out) {
  using C = typename S::Kind;
  constexpr int kMost = 4;
  const int64_t head_dim = values.head_dim();
  int64_t at = 0;
  for (; at + kMost * C::kBlock <= head_dim; at += kMost * C::kBlock) {
    weigh_columns<S, kMost>(values, at, weight, count, kMost * C::kBlock, out);
  }
  for (; at < head_dim; at += C::kBlock) {
    weigh_columns<S, 1>(values, at, weight, count, std::min<int64_t>(C::kBlock, head_dim - at), out);
  }
}

// A query as it is scored, how many slots of the chunk it sees, and where the result goes.
template <class C>
struct Query {
  typename C::Input input;
  int64_t count;
  Chunk* chunk;
};

// G queries over the slots of their common key head, the last of which sees most. `next`: the keys that are scored
// afterwards, if any.
template <class S, int G>
[[gnu::noinline]] void attend_chunk(const S& keys, const S& values, const char* next,
                                    const Query<typename S::Kind>* queries) {
  alignas(64) float scores[kGroupMost][kChunk];
  typename S::Kind::Input q[G];
  for (int g = 0; g < G; g++) q[g] = queries[g].input;
  score<S, G>(keys, values, queries[G - 1].count, q, scores);
  for (int g = 0; g < G; g++) {
    const int64_t count = queries[g].count;
    Chunk& chunk = *queries[g].chunk;
    keys.scale(scores[g], count);
    chunk.largest = largest_of(scores[g], count);
    chunk.sum = softmax_weights(scores[g], count, chunk.largest);
    values.scale(scores[g], count);
    // Narrow ones take so many instructions per byte that memory would be idle meanwhile.
    if (kNarrow<typename S::Kind> && g == 0) ask_for(next, count * keys.row_bytes());
    weigh(values, scores[g], count, chunk.values);
  }
}

template <class S>
inline void attend_group(int64_t together, const S& keys, const S& values, const char* next,
                         const Query<typename S::Kind>* queries) {
  switch (together) {
    case 1: return attend_chunk<S, 1>(keys, values, next, queries);
    case 2: return attend_chunk<S, 2>(keys, values, next, queries);
    case 3: return attend_chunk<S, 3>(keys, values, next, queries);
    default: return attend_chunk<S, kGroupMost>(keys, values, next, queries);
  }
}

// Joins `n` chunks, `stride` floats apart from the first, into out [head_dim].
inline void combine(const Chunk* first, int64_t n, int64_t stride, int64_t head_dim, float* out) {
  const auto chunk = [&](int64_t i) {
    return reinterpret_cast<const Chunk*>(reinterpret_cast<const float*>(first) + i * stride);
  };
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
