// A loop over independent items, shared between the calling thread and a thread pool.
//
// The caller works too and waits only for items that a running thread has claimed, so a loop ends
// even where the pool has one thread, is busy, or many loops run at once. Results must not depend
// on which thread takes which item.

#ifndef HALOGEN_PALLAS_KERNELS_PARALLEL_H_
#define HALOGEN_PALLAS_KERNELS_PARALLEL_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace halogen {

// Tells the core that this is a waiting loop.
inline void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Rounds denormal numbers to zero while it lives, as XLA does on some of its threads and not on
// others: a result must not depend on the thread.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  FlushDenormals() {}  // nothing here changes the mode
#endif
};

constexpr int64_t kMaxRanges = 64;  // more threads than that share them

// Claims items and counts the finished ones; outlives the loop when a thread of the pool starts
// late. Each thread begins with a range of neighbouring items, which it reads from memory as one
// stream, and then helps with the ranges of others.
struct LoopState {
  LoopState(int64_t num_items, int64_t num_ranges) : num_items(num_items), num_ranges(num_ranges) {
    for (int64_t i = 0; i < num_ranges; ++i) {
      ranges[i].next.store(Begin(i), std::memory_order_relaxed);
    }
  }

  int64_t Begin(int64_t range) const { return range * num_items / num_ranges; }

  // Works on items until none is left, those of `own` first. `body` is touched only after an item
  // was claimed, and the caller's frame lives until every claimed item is done.
  template <typename Body>
  void Work(int64_t own, const Body& body) {
    int64_t finished = 0;
    for (int64_t i = 0; i < num_ranges; ++i) {
      const int64_t range = (own + i) % num_ranges, end = Begin(range + 1);
      std::atomic<int64_t>& next = ranges[range].next;
      if (next.load(std::memory_order_relaxed) >= end) continue;
      for (int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < end;) {
        body(item);
        ++finished;
      }
    }
    if (finished &&
        done.fetch_add(finished, std::memory_order_acq_rel) + finished == num_items) {
      std::lock_guard<std::mutex> lock(mutex);
      all_done.notify_one();
    }
  }

  // Returns when every item is done: a short spin, since the others are mid-item, then a sleep.
  void Wait() {
    for (int spins = 0; spins < 2000; ++spins) {
      if (done.load(std::memory_order_acquire) == num_items) return;
      Pause();
    }
    std::unique_lock<std::mutex> lock(mutex);
    all_done.wait(lock, [this] { return done.load(std::memory_order_acquire) == num_items; });
  }

  struct alignas(64) Range {  // a cache line of its own
    std::atomic<int64_t> next;
  };
  const int64_t num_items, num_ranges;
  Range ranges[kMaxRanges];
  std::atomic<int64_t> done{0};
  std::mutex mutex;
  std::condition_variable all_done;
};

// Calls body(item) once for each item in [0, num_items), in any order, on the caller and at most
// num_threads - 1 threads of `pool` (anything with Schedule(function) and num_threads(), such as
// xla::ffi::ThreadPool). Denormal numbers are flushed inside.
template <typename Pool, typename Body>
void ParallelFor(Pool& pool, int64_t num_items, const Body& body) {
  FlushDenormals flush;
  const int64_t others = std::min<int64_t>(pool.num_threads(), num_items) - 1;
  if (others <= 0) {
    for (int64_t item = 0; item < num_items; ++item) body(item);
    return;
  }
  auto state = std::make_shared<LoopState>(num_items, std::min(others + 1, kMaxRanges));
  for (int64_t i = 1; i <= others; ++i) {
    pool.Schedule([state, i, &body] {
      FlushDenormals flush;
      state->Work(i % state->num_ranges, body);
    });
  }
  state->Work(0, body);
  state->Wait();
}

}  // namespace halogen

#endif  // HALOGEN_PALLAS_KERNELS_PARALLEL_H_
