#include "base/background.h"

#include <memory>
#include <utility>

#include "absl/synchronization/notification.h"

namespace tensorcast {

PeriodicTask::PeriodicTask(absl::Duration interval, std::function<void()> task)
    : thread_([this, interval, task = std::move(task)] { Loop(interval, task); }) {}

PeriodicTask::~PeriodicTask() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void PeriodicTask::Loop(absl::Duration interval, const std::function<void()>& task) {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), interval)) return;
    }
    task();
  }
}

SerialExecutor::SerialExecutor() : thread_([this] { Loop(); }) {}

SerialExecutor::~SerialExecutor() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void SerialExecutor::Run(std::function<void()> job) {
  absl::MutexLock lock(&mutex_);
  jobs_.push_back(std::move(job));
}

void SerialExecutor::Flush() {
  auto done = std::make_shared<absl::Notification>();
  Run([done] { done->Notify(); });
  done->WaitForNotification();
}

void SerialExecutor::Loop() {
  while (true) {
    std::function<void()> job;
    {
      absl::MutexLock lock(&mutex_);
      const auto wanted = [this]()
                              ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !jobs_.empty(); };
      mutex_.Await(absl::Condition(&wanted));
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace tensorcast
