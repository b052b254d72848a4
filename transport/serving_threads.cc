#include "transport/serving_threads.h"

#include <utility>

#include "absl/log/check.h"

namespace tensorcast::transport {

ServingThreads::ServingThreads(int threads) {
  CHECK_GE(threads, 1);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

ServingThreads::~ServingThreads() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void ServingThreads::Submit(absl::AnyInvocable<void()> task) {
  absl::MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
}

void ServingThreads::Run() {
  for (;;) {
    absl::AnyInvocable<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &ServingThreads::WorkOrStop));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace tensorcast::transport
