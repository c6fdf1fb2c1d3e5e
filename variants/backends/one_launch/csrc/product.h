// Matrix times a few vectors: rows of weights are read once, from several places at a time.
#pragma once

#include "weights.h"

namespace one_launch {

constexpr int kPlaces = 4;  // rows read side by side: one stream of reads does not fill the memory channels
constexpr int64_t kLineFloats = kLine / sizeof(float);  // two threads never write to one line

struct Range {
  int64_t begin, end;
};

// The part of 0..n that belongs to `rank`, in whole units.
inline Range part(int64_t n, int rank, int threads, int64_t unit = kLineFloats) {
  const int64_t units = (n + unit - 1) / unit;
  return {std::min(n, units * rank / threads * unit), std::min(n, units * (rank + 1) / threads * unit)};
}

// out[row r][input b] of R rows and B inputs, each row of weights loaded once for all B.
template <class W, int R, int B>
inline void dot_rows(const char* const (&row)[R], const float* const (&scale)[R], const typename W::Input* in,
                     int64_t cols, float (&out)[R][B]) {
  auto sums = zeros<typename W::Sums, R * B>();
  const auto add = [&](int64_t at, int64_t count) {
    for (int r = 0; r < R; r++) {
      const auto block = W::block(row[r], scale[r], at, count);
      for (int b = 0; b < B; b++) sums[r * B + b] = W::fma(block, in[b], at, sums[r * B + b]);
    }
  };
  int64_t at = 0;
#pragma GCC unroll 2
  for (; at + W::kBlock <= cols; at += W::kBlock) add(at, W::kBlock);
  if (at < cols) add(at, cols - at);
  for (int r = 0; r < R; r++) {
    for (int b = 0; b < B; b++) out[r][b] = W::finish(sums[r * B + b], in[b], scale[r]);
  }
}

// out[b][n] = row n . input b + bias, for the rows of one thread.
template <class W>
class Product {
 public:
  Product(const Linear& linear, const typename W::Input* inputs, int64_t count, float* out, int64_t pitch)
      : linear_(linear), inputs_(inputs), count_(count), out_(out), pitch_(pitch) {}

  void run(Range rows) const {
    const int64_t apart = (rows.end - rows.begin) / kPlaces;
    for (int64_t n = rows.begin; n < rows.begin + apart; n++) all_inputs<kPlaces>(n, apart);
    for (int64_t n = rows.begin + kPlaces * apart; n < rows.end; n++) all_inputs<1>(n, 0);
  }

 private:
  static constexpr int64_t kTogether = 3;  // inputs: with four rows, as many sums as AVX2 has registers for

  template <int R>
  void all_inputs(int64_t first, int64_t apart) const {
    for (int64_t b = 0; b < count_; b += kTogether) {
      switch (std::min(kTogether, count_ - b)) {
        case 1: rows<R, 1>(first, apart, b); break;
        case 2: rows<R, 2>(first, apart, b); break;
        default: rows<R, 3>(first, apart, b);
      }
    }
  }

  template <int R, int B>
  void rows(int64_t first, int64_t apart, int64_t b) const {
    const char* row[R];
    const float* scale[R];
    for (int r = 0; r < R; r++) {
      const int64_t n = first + r * apart;
      row[r] = linear_.weight + n * linear_.row_bytes;
      scale[r] = linear_.scale ? linear_.scale + n * linear_.groups : nullptr;
    }
    float out[R][B];
    dot_rows<W, R, B>(row, scale, &inputs_[b], linear_.cols, out);
    for (int r = 0; r < R; r++) {
      const int64_t n = first + r * apart;
      const float bias = linear_.bias ? linear_.bias[n] : 0.f;
      for (int i = 0; i < B; i++) out_[(b + i) * pitch_ + n] = out[r][i] + bias;
    }
  }

  const Linear& linear_;
  const typename W::Input* inputs_;
  int64_t count_;
  float* out_;
  int64_t pitch_;
};

}  // namespace one_launch
