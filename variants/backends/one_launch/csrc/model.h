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

// The device state of a step.
struct State {
  int64_t *token, *length;  // [batch], []
  char* logits;             // [batch, vocab]
};

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

// What one thread keeps to itself.
template <class W>
struct Own {
  Aligned<float> row;                     // one activation row
  Aligned<char> memory, query_memory;     // rows made ready for the kernels
  std::vector<typename W::Input> inputs;  // [batch]
  std::vector<Best> best;  // [batch]
  std::vector<Span> spans;

  Own(const Model& m, int64_t longest)
      : row(round_up(longest, kPad)),
        memory(m.batch * W::input_bytes(longest)),
        query_memory(kGroupMost * Float32::input_bytes(m.head_dim)),
        inputs(m.batch),
        best(m.batch) {}
};

// What all threads share. Rows are `pitch` floats apart.
template <class W>
struct Scratch {
  int64_t pitch, inner_pitch, wide_pitch, qkv_pitch, logits_pitch, chunks, chunk_pitch;
  Aligned<float> x, residual, qkv, partial, hidden, wide, logits;
  Barrier barrier;
  std::vector<std::unique_ptr<Own<W>>> own;

  explicit Scratch(const Model& m)
      : pitch(round_up(m.width, kPad)),
        inner_pitch(round_up(m.inner, kPad)),
        wide_pitch(m.gated ? round_up(2 * m.inner, kPad) : 0),
        qkv_pitch(round_up((m.heads + 2 * m.kv_heads) * m.head_dim, kPad)),
        logits_pitch(round_up(m.vocab, kPad)),
        chunks((m.capacity + kChunk - 1) / kChunk),
        chunk_pitch(chunk_floats(m.head_dim)),
        x(m.batch * pitch),
        residual(m.batch * pitch),
        qkv(m.batch * qkv_pitch),
        partial(m.batch * m.heads * chunks * chunk_pitch),
        hidden(m.batch * inner_pitch),
        wide(m.batch * wide_pitch),
        logits(m.batch * logits_pitch) {}

  // Where a chunk's result lies, for one query head of one row.
  Chunk* chunk(const Model& m, int64_t b, int64_t head, int64_t number) const {
    return reinterpret_cast<Chunk*>(partial.get() + ((b * m.heads + head) * chunks + number) * chunk_pitch);
  }

  void prepare_for(const Model& m, int threads) {
    while (static_cast<int>(own.size()) < threads) {
      own.push_back(std::make_unique<Own<W>>(m, std::max({m.width, m.inner, m.heads * m.head_dim})));
    }
  }
};

}  // namespace one_launch
