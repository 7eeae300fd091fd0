// A pool of threads for the kernels' tests, with the two functions of XLA's that they use.

#ifndef HALOGEN_TESTS_PALLAS_KERNELS_THREAD_POOL_H_
#define HALOGEN_TESTS_PALLAS_KERNELS_THREAD_POOL_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>
#include <utility>
#include <vector>

namespace halogen {

// num_threads counts the caller, who works too.
class Pool {
 public:
  explicit Pool(int64_t num_threads) : num_threads_(num_threads) {
    for (int64_t i = 1; i < num_threads; ++i) threads_.emplace_back([this] { Work(); });
  }
  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_ending_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  int64_t num_threads() const { return num_threads_; }
  void Schedule(std::function<void()> task) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push(std::move(task));
    }
    wake_.notify_one();
  }

 private:
  void Work() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [this] { return is_ending_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop();
      lock.unlock();
      task();
    }
  }

  const int64_t num_threads_;
  bool is_ending_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::queue<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
};

}  // namespace halogen

#endif  // HALOGEN_TESTS_PALLAS_KERNELS_THREAD_POOL_H_
