// One decode step as one parallel region: every thread runs `Worker::step` and meets the others at a
// barrier after each phase. Most of a phase's outputs are divided among the threads in advance.
#pragma once

#include "attend.h"

namespace one_launch {

template <class W>
class Worker {
  using Plain = typename W::Plain;
  using Scalar = typename Plain::Scalar;

 public:
  Worker(const Model& model, const State& state, Scratch<W>& scratch, int rank, int threads, bool watched)
      : m_(model), state_(state), s_(scratch), own_(*scratch.own[rank]), rank_(rank), threads_(threads),
        watched_(watched), position_(*state.length), chunks_(position_ / kChunk + 1) {}

  void step() {
    phase(Phase::embed, 0, [&] { embed(); });
    for (size_t layer = 0; layer < m_.blocks.size(); layer++) {
      const Block& block = m_.blocks[layer];
      phase(Phase::qkv, layer, [&] {
        normalised(block.ln_1);
        project(block.qkv, s_.qkv.get(), s_.qkv_pitch, [](Range) {});
      });
      phase(Phase::attention, layer, [&] { attend(block); });
      phase(Phase::out, layer, [&] {
        attended();
        add_to_residual(block.out);
      });
      phase(Phase::up, layer, [&] {
        normalised(block.ln_2);
        m_.gated ? up_gated(block.up) : up(block.up);
      });
      phase(Phase::down, layer, [&] {
        for (int64_t b = 0; b < m_.batch; b++) make_ready(b, hidden(b), m_.inner);
        add_to_residual(block.down);
      });
    }
    phase(Phase::head, 0, [&] {
      normalised(m_.ln_f);
      std::fill(own_.best.begin(), own_.best.end(), Best());
      project(m_.head, s_.logits.get(), s_.logits_pitch, [&](Range done) { emit(done); });
    });
    if (rank_ == 0) feed_back();
  }

 private:
  static constexpr int64_t kLeftToAll = 8;  // one piece in so many is left to whoever is ready

  float* x(int64_t b) const { return s_.x.get() + b * s_.pitch; }
  float* qkv(int64_t b) const { return s_.qkv.get() + b * s_.qkv_pitch; }
  float* hidden(int64_t b) const { return s_.hidden.get() + b * s_.inner_pitch; }

  template <class F>
  void phase(Phase name, int64_t layer, F work) {
    const int64_t start = watched_ ? now_ns() : 0;
    work();
    if (watched_) own_.spans.push_back({name, layer, start, now_ns()});
    s_.barrier.wait(threads_);
  }

  void embed() {
    const Range mine = part(m_.width, rank_, threads_);
    const auto* position = reinterpret_cast<const Scalar*>(m_.position_table) + position_ * m_.width;
    for (int64_t b = 0; b < m_.batch; b++) {
      const auto* token = reinterpret_cast<const Scalar*>(m_.token_table) + state_.token[b] * m_.width;
      for (int64_t i = mine.begin; i < mine.end; i++) x(b)[i] = Plain::to_float(token[i]);
      if (m_.rope) continue;  // positions turn queries and keys instead
      for (int64_t i = mine.begin; i < mine.end; i++) x(b)[i] += Plain::to_float(position[i]);
    }
  }

  void make_ready(int64_t b, const float* row, int64_t cols) {
    own_.inputs[b] = W::prepare(row, cols, own_.memory.get() + b * W::input_bytes(cols));
  }

  // Every thread normalises the rows for itself: that costs less than a barrier.
  void normalised(const Norm& norm) {
    for (int64_t b = 0; b < m_.batch; b++) {
      normalise(x(b), norm, m_.width, m_.epsilon, own_.row.get());
      make_ready(b, own_.row.get(), m_.width);
    }
  }

  // Calls `work` with the ranges of 0..n that this thread takes. Most of it is divided evenly in advance. The
  // rest goes in pieces to whoever is ready, so that a thread that was held up keeps nobody waiting.
  template <class F>
  void share(int64_t n, int64_t unit, int64_t piece, F work) {
    const int64_t pieces = n / piece / kLeftToAll;
    if (pieces < threads_) return work(part(n, rank_, threads_, unit));
    const int64_t even = n - pieces * piece;
    work(part(even, rank_, threads_, unit));
    for (int64_t i; (i = s_.barrier.claim()) < pieces;) work({even + i * piece, even + (i + 1) * piece});
  }

  // out = linear(own inputs), for the rows that fall to this thread; then and_then(rows).
  template <class F>
  void project(const Linear& linear, float* out, int64_t pitch, F and_then) {
    const Product<W> product(linear, own_.inputs, out, pitch);
    const int64_t piece = round_up(std::max<int64_t>(1, m_.piece_bytes / linear.row_bytes), kLineFloats);
    share(linear.rows, kLineFloats, piece, [&](Range rows) {
      product.run(rows);
      and_then(rows);
    });
  }

  void up(const Linear& linear) {
    project(linear, s_.hidden.get(), s_.inner_pitch, [&](Range done) {
      for (int64_t b = 0; b < m_.batch; b++) gelu(hidden(b) + done.begin, done.end - done.begin);
    });
  }

  // Ranges of rows begin and end on whole cache lines, hence on whole pairs of gate and up.
  void up_gated(const Linear& linear) {
    project(linear, s_.wide.get(), s_.wide_pitch, [&](Range done) {
      const int64_t count = (done.end - done.begin) / 2;
      for (int64_t b = 0; b < m_.batch; b++) {
        gated(s_.wide.get() + b * s_.wide_pitch + done.begin, count, hidden(b) + done.begin / 2);
      }
    });
  }

  void add_to_residual(const Linear& linear) {
    project(linear, s_.residual.get(), s_.pitch, [&](Range done) {
      for (int64_t b = 0; b < m_.batch; b++) {
        for (int64_t i = done.begin; i < done.end; i++) x(b)[i] += s_.residual.get()[b * s_.pitch + i];
      }
    });
  }

  void attend(const Block& block) {
    switch (m_.cache) {
      case CacheKind::plain: return attend_as<Slots<Plain>>(block);
      case CacheKind::pages: return attend_as<Pages<Plain>>(block);
      case CacheKind::bfloat16: return attend_as<Slots<BFloat16>>(block);
      case CacheKind::int8: return attend_as<Slots<ScaledBytes>>(block);
    }
  }

  template <class S>
  void attend_as(const Block& block) {
    const Attention<W, S> attention(m_, block, s_, own_, position_);
    share(m_.batch * m_.kv_heads * chunks_, 1, 1, [&](Range items) {
      for (int64_t item = items.begin; item < items.end; item++) attention.run(item / chunks_, item % chunks_);
    });
  }

  void attended() {
    for (int64_t b = 0; b < m_.batch; b++) {
      for (int64_t head = 0; head < m_.heads; head++) {
        combine(s_.chunk(m_, b, head, 0), chunks_, s_.chunk_pitch, m_.head_dim, own_.row.get() + head * m_.head_dim);
      }
      make_ready(b, own_.row.get(), m_.heads * m_.head_dim);
    }
  }

  // Logits in the model's dtype, and the best of this thread's part as they were rounded.
  void emit(Range mine) {
    for (int64_t b = 0; b < m_.batch; b++) {
      float* values = s_.logits.get() + b * s_.logits_pitch;
      auto* to = reinterpret_cast<Scalar*>(state_.logits) + b * m_.vocab;
      for (int64_t i = mine.begin; i < mine.end; i++) {
        to[i] = Plain::from_float(values[i]);
        values[i] = Plain::to_float(to[i]);
      }
      own_.best[b] = better(own_.best[b], best_of(values, mine));
    }
  }

  void feed_back() const {
    for (int64_t b = 0; b < m_.batch; b++) {
      Best best;
      for (int rank = 0; rank < threads_; rank++) {
        best = better(best, s_.own[rank]->best[b]);
      }
      state_.token[b] = best.index;
    }
    *state_.length = position_ + 1;
  }

  const Model& m_;
  const State& state_;
  Scratch<W>& s_;
  Own<W>& own_;
  const int rank_, threads_;
  const bool watched_;
  const int64_t position_, chunks_;
};

}  // namespace one_launch
