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

void ServeCounter::AddRequest(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  const SteadyTime now = SteadyNow();
  if (stats_.requests++ == 0) stats_.first_request = now;
  // `asked_` measures the time in which the receiver waits for something: it begins with the first request
  // and ends when all that was asked for is sent.
  if (requested_ == 0 && bytes > 0) asked_.Begin(now);
  requested_ += bytes;
}

// Called on the connections' threads, of which one pull may have several; `requested_` is the sum of all.
void ServeCounter::DropRequested(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  Settle(bytes, SteadyNow());
}

void ServeCounter::AddBytes(uint64_t bytes, uint64_t requested) {
  absl::MutexLock lock(&mutex_);
  stats_.bytes += bytes;
  stats_.last_completion = SteadyNow();
  Settle(requested, stats_.last_completion);
}

void ServeCounter::Settle(uint64_t bytes, SteadyTime now) {
  if (requested_ == 0) return;
  requested_ -= std::min(requested_, bytes);
  if (requested_ == 0) asked_.End(now);
}

void ServeCounter::SetReceiverTrace(const TraceContext& trace) {
  absl::MutexLock lock(&mutex_);
  stats_.receiver_trace = trace;
}

ServeStats ServeCounter::stats() const {
  absl::MutexLock lock(&mutex_);
  ServeStats stats = stats_;
  stats.asked = asked_.Until(SteadyNow());
  return stats;
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
  // Tasks that were submitted still run: each has a caller that waits for its end.
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
    // Without the lock: it may block on a disk.
    task();
  }
}

}  // namespace tensorcast::transport
