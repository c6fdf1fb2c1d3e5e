// The step, the pass over several tokens and the plain read as PyTorch sees them.
#include "quantised.h"
#include "read.h"
#include "step.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <omp.h>
#include <torch/library.h>

#include <mutex>
#include <unordered_map>
#include <variant>

namespace one_launch {
namespace {

using Tensors = c10::Dict<std::string, at::Tensor>;

class Plan;

// Plans that are alive, by number: an operation takes a number at once, but looking an object up costs more than
// all the barriers of a step.
class Plans {
 public:
  int64_t add(Plan* plan) {
    const std::lock_guard lock(guard_);
    plans_[++last_] = plan;
    return last_;
  }
  void remove(int64_t number) {
    const std::lock_guard lock(guard_);
    plans_.erase(number);
  }
  Plan& at(int64_t number) {
    const std::lock_guard lock(guard_);
    const auto found = plans_.find(number);
    TORCH_CHECK(found != plans_.end(), "no plan has the number ", number, ": was its body deleted?");
    return *found->second;
  }

 private:
  std::mutex guard_;
  int64_t last_ = 0;
  std::unordered_map<int64_t, Plan*> plans_;
};

Plans& plans = *new Plans();  // outlives every plan

// A model and its cache as the step sees them. Keeps the tensors alive; they must not be reallocated.
class Plan : public torch::CustomClassHolder {
 public:
  // shape: heads, and whether the up-projection is gated. tensors: by the model's own parameter names; vectors and scales are float32.
  // k, v: per layer what is stored for keys and for values, [batch, kv_heads, capacity, head_dim] and, of int8, the
  // scales [batch, kv_heads, capacity, 1]; of pages, blocks [blocks, kv_heads, size, head_dim] and their table
  // [batch, blocks of a row] int64.
  Plan(const std::string& weights, std::vector<int64_t> shape, double epsilon, Tensors tensors,
       std::vector<std::vector<at::Tensor>> k, std::vector<std::vector<at::Tensor>> v,
       std::optional<at::Tensor> table)
      : tensors_(std::move(tensors)), k_(std::move(k)), v_(std::move(v)), table_(std::move(table)) {
    const at::Tensor wte = tensor("wte.weight"), keys = k_.at(0).at(0);
    m_.width = wte.size(1);
    m_.gated = shape.at(1);
    m_.inner = tensor("blocks.0.up.weight").size(0) / (m_.gated ? 2 : 1);
    m_.heads = shape.at(0);
    m_.vocab = wte.size(0);
    m_.batch = table_ ? table_->size(0) : keys.size(0);
    static_cast<Layout&>(m_) = layout(keys);
    m_.cache = cache_kind(keys.scalar_type());
    m_.epsilon = static_cast<float>(epsilon);
    m_.token_table = bytes(wte);
    if (has("wpe.weight")) m_.position_table = bytes(tensor("wpe.weight"));
    if (has("rope")) m_.rope = bytes(tensor("rope"));
    for (size_t layer = 0; layer < k_.size(); layer++) m_.blocks.push_back(block(layer));
    m_.ln_f = norm("ln_f");
    m_.head = linear("lm_head", m_.width);
    if (weights == "float32") memory_ = std::make_unique<Memory<Float32>>(m_);
    else if (weights == "bfloat16") memory_ = std::make_unique<Memory<BFloat16Weights>>(m_);
    else if (weights == "int8") memory_ = std::make_unique<Memory<Int8>>(m_);
    else if (weights == "int4") memory_ = std::make_unique<Memory<Int4>>(m_);
    else TORCH_CHECK(false, "one launch has no kernel for ", weights, " weights");
    number_ = plans.add(this);
  }
  ~Plan() override { plans.remove(number_); }

  int64_t number() const { return number_; }

  void step(const at::Tensor& token, const at::Tensor& length, const at::Tensor& logits) {
    const State state{token.data_ptr<int64_t>(), length.data_ptr<int64_t>(), bytes(logits)};
    check(state, token, logits);
    std::visit([&](auto& memory) { run(memory->step, state); }, memory_);
  }

  // In passes of about equal numbers of tokens; each reads the weights once.
  void extend(const at::Tensor& tokens, const at::Tensor& length, const at::Tensor& logits) {
    State state{tokens.data_ptr<int64_t>(), length.data_ptr<int64_t>(), bytes(logits)};
    state.tokens = tokens.size(1);
    state.every = logits.size(1) == state.tokens;
    state.feeds_back = false;
    check(state, tokens, logits);
    const int64_t most = std::max<int64_t>(1, kPassRows / m_.batch), passes = (state.tokens + most - 1) / most;
    for (int64_t pass = 0; pass < passes; pass++) {
      state.first = state.tokens * pass / passes;
      state.each = state.tokens * (pass + 1) / passes - state.first;
      std::visit([&](auto& memory) { run(memory->passes(m_, state), state); }, memory_);
    }
  }

  void watch(bool on) { watched_ = on; }

  // [spans, 5] int64: phase, layer, thread, start_ns, end_ns; forgotten here afterwards.
  at::Tensor spans() {
    std::vector<int64_t> rows;
    std::visit([&](auto& memory) { collect(memory->step, rows); }, memory_);
    const at::Tensor table = at::empty({static_cast<int64_t>(rows.size()) / 5, 5}, at::kLong);
    std::copy(rows.begin(), rows.end(), table.data_ptr<int64_t>());
    return table;
  }

 private:
  // What steps work in, and what passes over several tokens do, which is made when one comes that needs more.
  template <class W>
  struct Memory {
    Scratch<W> step;
    std::unique_ptr<Scratch<W>> pass;

    explicit Memory(const Model& m) : step(m, m.batch, m.batch) {}

    Scratch<W>& passes(const Model& m, const State& state) {
      const int64_t rows = m.batch * state.each, head_rows = state.every ? rows : m.batch;
      if (!pass || pass->rows < rows || pass->head_rows < head_rows) {
        pass = std::make_unique<Scratch<W>>(m, std::max(rows, pass ? pass->rows : 0),
                                            std::max(head_rows, pass ? pass->head_rows : 0));
      }
      return *pass;
    }
  };

  template <class W>
  void run(Scratch<W>& scratch, const State& state) {
    const int wanted = at::get_num_threads();
    scratch.prepare_for(m_, wanted);
#pragma omp parallel num_threads(wanted)
    Worker<W>(m_, state, scratch, omp_get_thread_num(), omp_get_num_threads(), watched_).run();
  }

  template <class W>
  static void collect(Scratch<W>& scratch, std::vector<int64_t>& rows) {
    for (size_t thread = 0; thread < scratch.own.size(); thread++) {
      for (const Span& s : scratch.own[thread]->spans) {
        rows.insert(rows.end(), {int64_t(s.phase), s.layer, int64_t(thread), s.start_ns, s.end_ns});
      }
      scratch.own[thread]->spans.clear();
    }
  }

  void check(const State& state, const at::Tensor& tokens, const at::Tensor& logits) const {
    const int64_t all = m_.batch * state.tokens, answered = state.every ? all : m_.batch;
    TORCH_CHECK(state.tokens > 0 && tokens.numel() == all && tokens.is_contiguous(), "expected tokens [", m_.batch,
                ", ", state.tokens, "]");
    TORCH_CHECK(logits.numel() == answered * m_.vocab && logits.is_contiguous() && logits.scalar_type() == plain(),
                "expected logits of ", answered, " tokens, each ", m_.vocab, " of ", plain());
    TORCH_CHECK(0 <= *state.length && *state.length + state.tokens <= m_.capacity, "no room for ", state.tokens,
                " more after ", *state.length, " in a cache of ", m_.capacity, " slots");
    for (int64_t i = 0; i < all; i++) {
      TORCH_CHECK_INDEX(0 <= state.token[i] && state.token[i] < m_.vocab, "token ", state.token[i],
                        " is outside the vocabulary of ", m_.vocab);
    }
  }

  at::Tensor tensor(const std::string& name) const { return tensors_.at(name); }
  bool has(const std::string& name) const { return tensors_.contains(name); }
  at::ScalarType plain() const { return tensor("wte.weight").scalar_type(); }

  CacheKind cache_kind(at::ScalarType stored) const {
    if (stored == plain()) return table_ ? CacheKind::pages : CacheKind::plain;
    if (stored == at::kBFloat16) return CacheKind::bfloat16;
    TORCH_CHECK(stored == at::kChar, "one launch reads no cache of ", stored);
    return CacheKind::int8;
  }

  Layout layout(const at::Tensor& keys) const {
    if (!table_) return {keys.size(1), keys.size(3), keys.size(2)};
    const int64_t size = keys.size(2), blocks = table_->size(1);
    TORCH_CHECK(size > 0 && (size & (size - 1)) == 0, "one launch reads blocks of 2^n tokens, not of ", size);
    bytes(*table_);
    return {keys.size(1), keys.size(3), blocks * size, table_->data_ptr<int64_t>(), blocks, __builtin_ctzll(size)};
  }

  static Stored stored(const std::vector<at::Tensor>& parts) {
    if (parts.size() == 1) return {bytes(parts[0])};
    bytes(parts[1]);
    return {bytes(parts[0]), parts[1].data_ptr<float>()};
  }

  static char* bytes(const at::Tensor& t) {
    TORCH_CHECK(t.is_contiguous() && t.is_cpu(), "one launch needs contiguous CPU tensors");
    return static_cast<char*>(t.data_ptr());
  }

  const float* floats(const std::string& name) const {
    bytes(tensor(name));
    return tensor(name).data_ptr<float>();
  }

  // Absent where the model has none.
  Norm norm(const std::string& name) const {
    if (!has(name + ".weight")) return {};
    return {floats(name + ".weight"), has(name + ".bias") ? floats(name + ".bias") : nullptr};
  }

  Linear linear(const std::string& name, int64_t cols) const {
    const at::Tensor weight = tensor(name + ".weight");
    Linear l;
    l.weight = bytes(weight);
    l.rows = weight.size(0);
    l.cols = cols;
    l.row_bytes = weight.stride(0) * weight.element_size();
    if (has(name + ".bias")) l.bias = floats(name + ".bias");
    if (has(name + ".scale")) {
      l.scale = floats(name + ".scale");
      l.groups = tensor(name + ".scale").numel() / l.rows;
    }
    return l;
  }

  Block block(size_t layer) const {
    const std::string name = "blocks." + std::to_string(layer) + ".";
    return {norm(name + "ln_1"),
            norm(name + "ln_2"),
            norm(name + "q_norm"),
            norm(name + "k_norm"),
            linear(name + "qkv", m_.width),
            linear(name + "out", m_.heads * m_.head_dim),
            linear(name + "up", m_.width),
            linear(name + "down", m_.inner),
            stored(k_.at(layer)),
            stored(v_.at(layer))};
  }

  Tensors tensors_;
  std::vector<std::vector<at::Tensor>> k_, v_;
  std::optional<at::Tensor> table_;
  Model m_;
  bool watched_ = false;
  int64_t number_ = 0;  // among `plans`
  std::variant<std::unique_ptr<Memory<Float32>>, std::unique_ptr<Memory<BFloat16Weights>>,
               std::unique_ptr<Memory<Int8>>, std::unique_ptr<Memory<Int4>>>
      memory_;
};

void one_launch_step(int64_t plan, const at::Tensor& token, const at::Tensor& length, const at::Tensor& logits) {
  plans.at(plan).step(token, length, logits);
}

void one_launch_extend(int64_t plan, const at::Tensor& tokens, const at::Tensor& length, const at::Tensor& logits) {
  plans.at(plan).extend(tokens, length, logits);
}

// places [n, 2] int64: address and bytes of each piece. Sum of all bytes as 64-bit words, modulo 2^64; every byte is
// read once, by all threads.
int64_t read_bytes(const at::Tensor& places) {
  const int64_t* place = places.const_data_ptr<int64_t>();
  uint64_t total = 0;
#pragma omp parallel num_threads(at::get_num_threads()) reduction(+ : total)
  total += read_part(place, places.size(0), omp_get_thread_num(), omp_get_num_threads());
  return static_cast<int64_t>(total);
}

}  // namespace

TORCH_LIBRARY(decode_floor, m) {
  m.class_<Plan>("Plan")
      .def(torch::init<const std::string&, std::vector<int64_t>, double, Tensors,
                       std::vector<std::vector<at::Tensor>>, std::vector<std::vector<at::Tensor>>,
                       std::optional<at::Tensor>>())
      .def("number", &Plan::number)
      .def("watch", &Plan::watch)
      .def("spans", &Plan::spans);
  m.def("one_launch_step(int plan, Tensor(a!) token, Tensor(b!) length, Tensor(c!) logits) -> ()");
  m.def("one_launch_extend(int plan, Tensor tokens, Tensor(a!) length, Tensor(b!) logits) -> ()");
  m.def("read_bytes(Tensor places) -> int");
}

TORCH_LIBRARY_IMPL(decode_floor, CPU, m) {
  m.impl("one_launch_step", one_launch_step);
  m.impl("one_launch_extend", one_launch_extend);
  m.impl("read_bytes", read_bytes);
}

}  // namespace one_launch
