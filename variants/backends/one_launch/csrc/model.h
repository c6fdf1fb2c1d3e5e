// What a step reads, what it writes, and the scratch memory that it works in. Nothing here owns a tensor.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "attention.h"
#include "barrier.h"
#include "rows.h"

namespace one_launch {

struct Block {
  Norm ln_1, ln_2, q_norm, k_norm;
  Linear qkv, out, up, down;
  Stored k, v;
};

// How keys and values are stored: as embeddings are, in one piece or in pages, or narrower.
enum class CacheKind { plain, pages, bfloat16, int8 };

struct Model : Layout {
  int64_t width = 0, inner = 0, heads = 0, vocab = 0, batch = 0;
  CacheKind cache = CacheKind::plain;
  bool gated = false;  // `up` has 2 * inner rows, in which gate and up alternate
  float epsilon = 0;
  const char* token_table = nullptr;                        // [vocab, width]
  const char *position_table = nullptr, *rope = nullptr;  // [positions, width] or [positions, 2, head_dim / 2]
  std::vector<Block> blocks{};
  Norm ln_f{};
  Linear head{};
  int64_t piece_bytes = 64 << 10;  // weights that are shared out at once: microseconds, yet long stretches
};

// The device state of a step, and of a pass over `each` of `tokens` new tokens from `first` on, in every row of the
// batch. A step has one, which its argmax overwrites.
struct State {
  int64_t *token, *length;  // [batch, tokens], []
  char* logits;             // [batch, tokens, vocab], or [batch, 1, vocab] of the last one
  int64_t tokens = 1, first = 0, each = 1;
  bool every = true, feeds_back = true;
};

constexpr int64_t kPassRows = 64;  // of a pass: as many rows of 3,072 bytes as a second-level cache holds

enum class Phase : int64_t { embed, qkv, attention, out, up, down, head };

// One thread's part of one phase, its wait at the barrier excluded. Nanoseconds of the system clock.
struct Span {
  Phase phase;
  int64_t layer, start_ns, end_ns;
};

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

struct FreeAligned {
  void operator()(void* p) const { std::free(p); }
};

template <class T>
class Aligned {  // zeroed memory on cache lines of its own
 public:
  explicit Aligned(int64_t count)
      : p_(static_cast<T*>(std::aligned_alloc(64, round_up(std::max<int64_t>(count, 1) * sizeof(T), 64)))) {
    std::memset(static_cast<void*>(p_.get()), 0, round_up(std::max<int64_t>(count, 1) * sizeof(T), 64));
  }
  T* get() const { return p_.get(); }

 private:
  std::unique_ptr<T, FreeAligned> p_;
};

// Rows of activations made ready for the kernels.
template <class W>
struct Inputs {
  Aligned<char> memory;
  std::vector<typename W::Input> rows;

  Inputs(int64_t count, int64_t longest) : memory(count * W::input_bytes(longest)), rows(count) {}

  void prepare(int64_t number, const float* row, int64_t cols) {
    rows[number] = W::prepare(row, cols, memory.get() + number * W::input_bytes(cols));
  }
};

// The longest row that is multiplied.
inline int64_t longest(const Model& m) { return std::max({m.width, m.inner, m.heads * m.head_dim}); }

// What one thread keeps to itself.
template <class W>
struct Own {
  Aligned<float> row;          // one activation row
  Aligned<char> query_memory;  // queries made ready for the kernels
  Inputs<W> inputs;            // [batch]
  std::vector<Best> best;      // [batch]
  std::vector<Span> spans;

  explicit Own(const Model& m)
      : row(round_up(longest(m), kPad)),
        query_memory(kGroupMost * Float32::input_bytes(m.head_dim)),
        inputs(m.batch, longest(m)),
        best(m.batch) {}
};

// What all threads share: `rows` rows, `head_rows` of which have logits. Rows are `pitch` floats apart.
template <class W>
struct Scratch {
  int64_t rows, head_rows, pitch, inner_pitch, wide_pitch, qkv_pitch, logits_pitch, chunks, chunk_pitch;
  Aligned<float> x, residual, qkv, partial, hidden, wide, logits;
  Inputs<W> inputs;  // of a pass over several tokens
  Barrier barrier;
  std::vector<std::unique_ptr<Own<W>>> own;

  Scratch(const Model& m, int64_t rows, int64_t head_rows)
      : rows(rows),
        head_rows(head_rows),
        pitch(round_up(m.width, kPad)),
        inner_pitch(round_up(m.inner, kPad)),
        wide_pitch(m.gated ? round_up(2 * m.inner, kPad) : 0),
        qkv_pitch(round_up((m.heads + 2 * m.kv_heads) * m.head_dim, kPad)),
        logits_pitch(round_up(m.vocab, kPad)),
        chunks((m.capacity + kChunk - 1) / kChunk),
        chunk_pitch(chunk_floats(m.head_dim)),
        x(rows * pitch),
        residual(rows * pitch),
        qkv(rows * qkv_pitch),
        partial(rows * m.heads * chunks * chunk_pitch),
        hidden(rows * inner_pitch),
        wide(rows * wide_pitch),
        logits(head_rows * logits_pitch),
        inputs(rows > m.batch ? rows : 0, longest(m)) {}

  // Where a chunk's result lies, for one query head of one row.
  Chunk* chunk(const Model& m, int64_t row, int64_t head, int64_t number) const {
    return reinterpret_cast<Chunk*>(partial.get() + ((row * m.heads + head) * chunks + number) * chunk_pitch);
  }

  void prepare_for(const Model& m, int threads) {
    while (static_cast<int>(own.size()) < threads) own.push_back(std::make_unique<Own<W>>(m));
  }
};

}  // namespace one_launch
