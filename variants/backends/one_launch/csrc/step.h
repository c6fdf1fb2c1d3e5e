// One decode step, or one pass over several tokens of each row, as one parallel region: every thread runs `Worker::run`
// and meets the others at a barrier after each phase. Most of a phase's outputs are divided among the threads in
// advance. A row of the pass is one new token of one row of the batch, and is computed as in a step of its own.
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
        watched_(watched), several_(state.each > 1), position_(*state.length), rows_(model.batch * state.each),
        inputs_(several_ ? scratch.inputs : own_.inputs) {}

  void run() {
    phase(Phase::embed, 0, [&] { embed(); });
    for (size_t layer = 0; layer < m_.blocks.size(); layer++) {
      const Block& block = m_.blocks[layer];
      phase(Phase::qkv, layer, [&] {
        normalised(block.ln_1, rows_);
        project(block.qkv, s_.qkv.get(), s_.qkv_pitch, [](Range) {});
      });
      phase(Phase::attention, layer, [&] { attend(block); });
      phase(Phase::out, layer, [&] {
        attended();
        add_to_residual(block.out);
      });
      phase(Phase::up, layer, [&] {
        normalised(block.ln_2, rows_);
        m_.gated ? up_gated(block.up) : up(block.up);
      });
      phase(Phase::down, layer, [&] {
        make_ready(rows_, m_.inner, [&](int64_t row) { return hidden(row); });
        add_to_residual(block.down);
      });
    }
    const int64_t heads = head_rows();
    if (heads > 0) {
      phase(Phase::head, 0, [&] {
        normalised(m_.ln_f, heads);
        std::fill(own_.best.begin(), own_.best.end(), Best());
        project(m_.head, s_.logits.get(), s_.logits_pitch, [&](Range done) { emit(done); });
      });
    }
    if (rank_ == 0) feed_back();
  }

 private:
  static constexpr int64_t kLeftToAll = 8;  // one piece in so many is left to whoever is ready

  float* x(int64_t row) const { return s_.x.get() + row * s_.pitch; }
  float* hidden(int64_t row) const { return s_.hidden.get() + row * s_.inner_pitch; }

  int64_t position(int64_t row) const { return position_ + row % state_.each; }
  // Where a row's token stands in [batch, tokens].
  int64_t place(int64_t row) const { return row / state_.each * state_.tokens + state_.first + row % state_.each; }

  // How many rows have logits: all, or the last token of each row of the batch in the last pass.
  int64_t head_rows() const {
    if (state_.every) return rows_;
    return state_.first + state_.each == state_.tokens ? m_.batch : 0;
  }

  template <class F>
  void phase(Phase name, int64_t layer, F work) {
    const int64_t start = watched_ ? now_ns() : 0;
    work();
    if (watched_) own_.spans.push_back({name, layer, start, now_ns()});
    s_.barrier.wait(threads_);
  }

  void embed() {
    const Range mine = part(m_.width, rank_, threads_);
    for (int64_t row = 0; row < rows_; row++) {
      const auto* token = reinterpret_cast<const Scalar*>(m_.token_table) + state_.token[place(row)] * m_.width;
      const auto* at = reinterpret_cast<const Scalar*>(m_.position_table) + position(row) * m_.width;
      for (int64_t i = mine.begin; i < mine.end; i++) x(row)[i] = Plain::to_float(token[i]);
      if (m_.rope) continue;  // positions turn queries and keys instead
      for (int64_t i = mine.begin; i < mine.end; i++) x(row)[i] += Plain::to_float(at[i]);
    }
  }

  // Rows that are multiplied next, each as `values` gives it. In a step every thread makes the few rows ready for
  // itself, which costs less than a barrier; the many of a pass are shared out.
  template <class F>
  void make_ready(int64_t count, int64_t cols, F values) {
    const Range mine = several_ ? part(count, rank_, threads_, 1) : Range{0, count};
    for (int64_t row = mine.begin; row < mine.end; row++) inputs_.prepare(row, values(row), cols);
    ready_ = count;
    if (several_) s_.barrier.wait(threads_);
  }

  // Of `count` rows: all, or the last token of each row of the batch.
  void normalised(const Norm& norm, int64_t count) {
    const int64_t each = rows_ / count;
    make_ready(count, m_.width, [&](int64_t row) {
      normalise(x(row * each + each - 1), norm, m_.width, m_.epsilon, own_.row.get());
      return own_.row.get();
    });
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
    const Product<W> product(linear, inputs_.rows.data(), ready_, out, pitch);
    const int64_t piece = round_up(std::max<int64_t>(1, m_.piece_bytes / linear.row_bytes), kLineFloats);
    share(linear.rows, kLineFloats, piece, [&](Range rows) {
      product.run(rows);
      and_then(rows);
    });
  }

  void up(const Linear& linear) {
    project(linear, s_.hidden.get(), s_.inner_pitch, [&](Range done) {
      for (int64_t row = 0; row < rows_; row++) gelu(hidden(row) + done.begin, done.end - done.begin);
    });
  }

  // Ranges of rows begin and end on whole cache lines, hence on whole pairs of gate and up.
  void up_gated(const Linear& linear) {
    project(linear, s_.wide.get(), s_.wide_pitch, [&](Range done) {
      const int64_t count = (done.end - done.begin) / 2;
      for (int64_t row = 0; row < rows_; row++) {
        gated(s_.wide.get() + row * s_.wide_pitch + done.begin, count, hidden(row) + done.begin / 2);
      }
    });
  }

  void add_to_residual(const Linear& linear) {
    project(linear, s_.residual.get(), s_.pitch, [&](Range done) {
      for (int64_t row = 0; row < rows_; row++) {
        for (int64_t i = done.begin; i < done.end; i++) x(row)[i] += s_.residual.get()[row * s_.pitch + i];
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
    const Attention<W, S> attention(m_, block, s_, own_, position_, state_.each);
    const int64_t lanes = m_.batch * m_.kv_heads, last = (position_ + state_.each - 1) / kChunk;
    if (several_) {  // a token's queries see the slots of those before it
      const Range mine = part(lanes, rank_, threads_, 1);
      for (int64_t lane = mine.begin; lane < mine.end; lane++) attention.append(lane);
      s_.barrier.wait(threads_);
    }
    share(lanes * (last + 1), 1, 1, [&](Range items) {
      for (int64_t item = items.begin; item < items.end; item++) {
        const int64_t lane = item / (last + 1), chunk = item % (last + 1);
        if (!several_ && chunk == last) attention.append(lane);  // nobody else reads that slot
        attention.run(lane, chunk);
      }
    });
  }

  void attended() {
    make_ready(rows_, m_.heads * m_.head_dim, [&](int64_t row) {
      for (int64_t head = 0; head < m_.heads; head++) {
        combine(s_.chunk(m_, row, head, 0), position(row) / kChunk + 1, s_.chunk_pitch, m_.head_dim,
                own_.row.get() + head * m_.head_dim);
      }
      return own_.row.get();
    });
  }

  // Logits in the model's dtype, and for a step the best of this thread's part as they were rounded.
  void emit(Range mine) {
    for (int64_t row = 0; row < ready_; row++) {
      float* values = s_.logits.get() + row * s_.logits_pitch;
      auto* to = reinterpret_cast<Scalar*>(state_.logits) + (state_.every ? place(row) : row) * m_.vocab;
      for (int64_t i = mine.begin; i < mine.end; i++) {
        to[i] = Plain::from_float(values[i]);
        values[i] = Plain::to_float(to[i]);
      }
      if (state_.feeds_back) own_.best[row] = better(own_.best[row], best_of(values, mine));
    }
  }

  void feed_back() const {
    for (int64_t b = 0; b < m_.batch && state_.feeds_back; b++) {
      Best best;
      for (int rank = 0; rank < threads_; rank++) {
        best = better(best, s_.own[rank]->best[b]);
      }
      state_.token[b] = best.index;
    }
    *state_.length = position_ + state_.each;
  }

  const Model& m_;
  const State& state_;
  Scratch<W>& s_;
  Own<W>& own_;
  const int rank_, threads_;
  const bool watched_, several_;
  const int64_t position_, rows_;
  Inputs<W>& inputs_;
  int64_t ready_ = 0;  // of them, for the next product
};

}  // namespace one_launch
