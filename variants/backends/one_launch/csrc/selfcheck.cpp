// A program for the sanitizers: a small model of odd sizes is stepped by one thread and by several, and takes the same
// tokens again several at once, in every weight format, with memory of exactly the size that may be touched. Exit
// status 1 where results differ.
#include <cstdio>
#include <thread>

#include "quantised.h"
#include "read.h"
#include "step.h"

namespace one_launch {
namespace {

constexpr int64_t kBatch = 5, kHeads = 4, kKvHeads = 2, kHeadDim = 15, kInner = 100, kVocab = 701;
constexpr int64_t kWidth = kHeads * kHeadDim, kQkv = (kHeads + 2 * kKvHeads) * kHeadDim, kLayers = 2;
constexpr int64_t kCapacity = kChunk + 12;
constexpr int64_t kPages = kBatch * ((kCapacity + 15) / 16);  // of 16 slots
constexpr int64_t kSteps = kChunk + 7;  // into the second chunk of slots
constexpr int64_t kTogether = 9;        // new tokens: the last pass has fewer

uint32_t random_bits() {
  static uint32_t state = 1;
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}

float random_float() { return (random_bits() % 2001 / 1000.f - 1.f) * 0.2f; }

// Owns every buffer that it hands out; each has its exact size, so that a read past it is seen.
class Memory {
 public:
  template <class T, class F>
  T* fill(int64_t count, F value) {
    auto& block = blocks_.emplace_back(count * sizeof(T));
    auto* p = reinterpret_cast<T*>(block.data());
    for (int64_t i = 0; i < count; i++) p[i] = value();
    return p;
  }
  float* floats(int64_t count) { return fill<float>(count, random_float); }

 private:
  std::vector<std::vector<char>> blocks_;
};

template <class Plain>
char* scalars(Memory& memory, int64_t count) {
  const auto value = [] { return Plain::from_float(random_float()); };
  return reinterpret_cast<char*>(memory.fill<typename Plain::Scalar>(count, value));
}

template <class W>
Linear linear(Memory& memory, int64_t rows, int64_t cols, bool with_bias) {
  Linear l;
  l.rows = rows;
  l.cols = cols;
  if (with_bias) l.bias = memory.floats(rows);
  if constexpr (std::is_base_of_v<typename W::Plain, W>) {
    l.row_bytes = cols * sizeof(typename W::Scalar);
    l.weight = scalars<typename W::Plain>(memory, rows * cols);
  } else {
    l.groups = std::is_same_v<W, Int4> ? round_up(cols, kPad) / 64 : 1;
    l.row_bytes = std::is_same_v<W, Int4> ? round_up(cols, kPad) / 2 : round_up(cols, 64);
    l.weight = memory.fill<char>(rows * l.row_bytes, [] { return char(int(random_bits() % 255) - 127); });
    l.scale = memory.fill<float>(rows * l.groups, [] { return 0.002f; });
  }
  return l;
}

// Pages lie in another order than the text.
Layout layout(Memory& memory, CacheKind kind) {
  if (kind != CacheKind::pages) return {kKvHeads, kHeadDim, kCapacity};
  int64_t next = kPages;
  return {kKvHeads, kHeadDim, kCapacity, memory.fill<int64_t>(kPages, [&] { return --next; }), kPages / kBatch, 4};
}

template <class Plain>
Stored stored(Memory& memory, CacheKind kind) {
  const int64_t slots = kKvHeads * (kind == CacheKind::pages ? kPages * 16 : kBatch * kCapacity);
  switch (kind) {
    case CacheKind::pages:
    case CacheKind::plain: return {scalars<Plain>(memory, slots * kHeadDim)};
    case CacheKind::bfloat16: return {scalars<BFloat16>(memory, slots * kHeadDim)};
    default: return {memory.fill<char>(slots * kHeadDim, random_bits), memory.floats(slots)};
  }
}

template <class W>
Model make(Memory& memory, CacheKind kind) {
  using Plain = typename W::Plain;
  const auto norm = [&] { return Norm{memory.floats(kWidth), memory.floats(kWidth)}; };
  Model m{layout(memory, kind), kWidth, kInner, kHeads, kVocab, kBatch, kind, false, 1e-5f};
  m.token_table = scalars<Plain>(memory, kVocab * kWidth);
  m.position_table = scalars<Plain>(memory, kCapacity * kWidth);
  for (int64_t layer = 0; layer < kLayers; layer++) {
    m.blocks.push_back({norm(), norm(), Norm{}, Norm{}, linear<W>(memory, kQkv, kWidth, true),
                        linear<W>(memory, kWidth, kWidth, true), linear<W>(memory, kInner, kWidth, true),
                        linear<W>(memory, kWidth, kInner, true),
                        stored<Plain>(memory, kind), stored<Plain>(memory, kind)});
  }
  m.ln_f = norm();
  m.head = linear<W>(memory, kVocab, kWidth, false);
  m.piece_bytes = 1;  // so that even so small a head is shared out
  return m;
}

template <class W>
void run(const Model& m, const State& state, Scratch<W>& scratch, int threads, bool watched) {
  std::vector<std::thread> team;
  for (int rank = 0; rank < threads; rank++) {
    team.emplace_back([&, rank] { Worker<W>(m, state, scratch, rank, threads, watched).run(); });
  }
  for (auto& member : team) member.join();
}

// The tokens that are fed to kSteps greedy steps, step by step, and the sum of the last logits.
template <class W>
std::vector<uint64_t> decode(const Model& m, int threads, bool watched) {
  Memory memory;
  int64_t next = 0;
  auto* token = memory.fill<int64_t>(kBatch, [&] { return next++; });
  auto* length = memory.fill<int64_t>(1, [] { return 0; });
  char* logits = scalars<typename W::Plain>(memory, kBatch * kVocab);
  Scratch<W> scratch(m, kBatch, kBatch);
  scratch.prepare_for(m, threads);
  std::vector<uint64_t> seen;
  for (int step = 0; step < kSteps; step++) {
    seen.insert(seen.end(), token, token + kBatch);
    run(m, {token, length, logits}, scratch, threads, watched);
  }
  seen.push_back(read_all(logits, kBatch * kVocab * sizeof(typename W::Plain::Scalar)));
  return seen;
}

// The same of the same tokens, kTogether at once.
template <class W>
std::vector<uint64_t> extend(const Model& m, int threads, std::vector<uint64_t> seen) {
  Memory memory;
  seen.pop_back();
  int64_t next = 0;
  auto* tokens = memory.fill<int64_t>(kBatch * kSteps, [&] {
    const int64_t place = next++;
    return seen[place % kSteps * kBatch + place / kSteps];
  });
  auto* length = memory.fill<int64_t>(1, [] { return 0; });
  char* logits = scalars<typename W::Plain>(memory, kBatch * kVocab);
  Scratch<W> scratch(m, kBatch * kTogether, kBatch);
  scratch.prepare_for(m, threads);
  for (int64_t first = 0; first < kSteps; first += kTogether) {
    const int64_t each = std::min(kTogether, kSteps - first);
    run(m, {tokens, length, logits, kSteps, first, each, false, false}, scratch, threads, false);
  }
  seen.push_back(read_all(logits, kBatch * kVocab * sizeof(typename W::Plain::Scalar)));
  return seen;
}

template <class W>
bool agrees(const char* name, CacheKind kind = CacheKind::plain) {
  Memory memory;
  const Model m = make<W>(memory, kind);
  const auto alone = decode<W>(m, 1, false);
  bool same = true;
  for (int threads : {2, 5}) same = same && decode<W>(m, threads, threads == 5) == alone;
  for (int threads : {1, 5}) same = same && extend<W>(m, threads, alone) == alone;
  std::printf("%s: %s\n", name, same ? "the same with 1, 2 and 5 threads, and several tokens at once" : "DIFFERS");
  return same;
}

}  // namespace
}  // namespace one_launch

int main() {
  using namespace one_launch;
  const bool all[] = {agrees<Float32>("float32"),
                      agrees<BFloat16Weights>("bfloat16"),
                      agrees<Int8>("int8"),
                      agrees<Int4>("int4"),
                      agrees<Float32>("float32, pages", CacheKind::pages),
                      agrees<Float32>("float32, cache of bfloat16", CacheKind::bfloat16),
                      agrees<Int4>("int4, cache of int8", CacheKind::int8)};
  for (bool same : all) {
    if (!same) return 1;
  }
}
