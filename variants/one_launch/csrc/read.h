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
  Words64 sums[kStreams];
  for (Words64& s : sums) s = Words64(0);
  for (int64_t i = 0; i < part; i += sizeof(Words64)) {
    for (int s = 0; s < kStreams; s++) sums[s] = sums[s] + Words64::loadu(p + s * part + i);
  }
  uint64_t total = 0;
  for (const Words64& s : sums) {
    int64_t words[Words64::size()];
    s.store(words);
    for (int64_t word : words) total += static_cast<uint64_t>(word);
  }
  for (int64_t i = kStreams * part; i < n; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, p + i, std::min<int64_t>(8, n - i));
    total += word;
  }
  return total;
}

// Thread `rank` of `threads` reads its consecutive part of every tensor, in the order given.
inline uint64_t read_part(const char* p, int64_t n, int rank, int threads) {
  const int64_t lines = (n + kLine - 1) / kLine;
  const int64_t begin = lines * rank / threads * kLine;
  const int64_t end = std::min(n, lines * (rank + 1) / threads * kLine);
  return begin < end ? read_all(p + begin, end - begin) : 0;
}

}  // namespace one_launch
