// The plain read that the memory floor is measured with.
#pragma once

#include <algorithm>

#include "vec.h"

namespace one_launch {

constexpr int kStreams = 8;  // places read at once; one sequential stream leaves memory channels idle

using Words64 = at::vec::Vectorized<int64_t>;

// Sum of the bytes [0, n) taken as little-endian 64-bit words modulo 2^64 (the tail padded with zeros).
// `n` bytes are read exactly once, as kStreams consecutive parts side by side.
inline uint64_t read_all(const char* p, int64_t n) {
  const int64_t part = n / kLine / kStreams * kLine;
  auto sums = zeros<Words64, kStreams>();
  for (int64_t i = 0; i < part; i += sizeof(Words64)) {
    for (int s = 0; s < kStreams; s++) sums[s] = sums[s] + Words64::loadu(p + s * part + i);
  }
  for (int s = 1; s < kStreams; s++) sums[0] = sums[0] + sums[s];
  int64_t words[Words64::size()];
  sums[0].store(words);
  uint64_t total = 0;
  for (int64_t word : words) total += static_cast<uint64_t>(word);
  for (int64_t i = kStreams * part; i < n; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, p + i, std::min<int64_t>(8, n - i));
    total += word;
  }
  return total;
}

inline int64_t lines_of(int64_t bytes) { return (bytes + kLine - 1) / kLine; }

// place [count, 2]: address and bytes of each piece. Thread `rank` of `threads` reads as many lines as any other,
// one piece after the other.
inline uint64_t read_part(const int64_t* place, int64_t count, int rank, int threads) {
  int64_t lines = 0;
  for (int64_t i = 0; i < count; i++) lines += lines_of(place[2 * i + 1]);
  const int64_t begin = lines * rank / threads, end = lines * (rank + 1) / threads;
  uint64_t total = 0;
  for (int64_t i = 0, at = 0; i < count; at += lines_of(place[2 * i + 1]), i++) {
    const auto* p = reinterpret_cast<const char*>(place[2 * i]);
    const int64_t from = std::max<int64_t>(begin - at, 0) * kLine;
    const int64_t to = std::min((end - at) * kLine, place[2 * i + 1]);
    if (from < to) total += read_all(p + from, to - from);
  }
  return total;
}

}  // namespace one_launch
