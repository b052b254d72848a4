#include "transport/serving.h"

#include <algorithm>
#include <utility>

#include "absl/log/check.h"
#include "base/ids.h"
#include "base/steady_time.h"

namespace tensorcast::transport {

PullId NewPullId() {
  PullId id;
  FillRandom(id.data(), id.size());
  return id;
}

PullId PullIdFromBytes(std::string_view bytes) {
  PullId id;
  CHECK_EQ(bytes.size(), id.size());
  std::copy(bytes.begin(), bytes.end(), id.begin());
  return id;
}

void ServeCounter::AddRequest() {
  absl::MutexLock lock(&mutex_);
  if (stats_.requests++ == 0) stats_.first_request = SteadyNow();
}

void ServeCounter::AddBytes(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  stats_.bytes += bytes;
  stats_.last_completion = SteadyNow();
}

void ServeCounter::SetReceiverTrace(const TraceContext& trace) {
  absl::MutexLock lock(&mutex_);
  stats_.receiver_trace = trace;
}

ServeStats ServeCounter::stats() const {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

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
      // Stopping, and all that was submitted has run: a caller waits for the end of each task.
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace tensorcast::transport
