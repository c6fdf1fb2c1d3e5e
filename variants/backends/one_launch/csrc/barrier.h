// A barrier for phases of a few microseconds that does not collapse when a core is taken away:
// wait actively for as long as a phase may last, then sleep until the last thread arrives.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace one_launch {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Barrier {
 public:
  // Returns when `threads` threads have called it; everything written before is visible after.
  void wait(int threads) {
    const uint32_t generation = generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
      arrived_.store(0, std::memory_order_relaxed);
      claimed_.store(0, std::memory_order_relaxed);
      generation_.store(generation + 1, std::memory_order_release);
      generation_.notify_all();
      return;
    }
    // With more threads than cores the awaited thread needs this core: sleep at once.
    const int patience = threads <= cores_ ? kPatience : 0;
    for (int i = 0; i < patience; i++) {
      if (generation_.load(std::memory_order_acquire) != generation) return;
      relax();
    }
    while (generation_.load(std::memory_order_acquire) == generation) generation_.wait(generation);
  }

  // The next number, from 0 on, that nobody has taken since the threads last met.
  int64_t claim() { return claimed_.fetch_add(1, std::memory_order_relaxed); }

 private:
  static constexpr int kPatience = 2000;  // about 50 us
  const int cores_ = static_cast<int>(std::thread::hardware_concurrency());
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int64_t> claimed_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
};

}  // namespace one_launch
