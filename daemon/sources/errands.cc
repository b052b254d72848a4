#include "daemon/sources/errands.h"

#include <memory>
#include <utility>

#include "absl/synchronization/notification.h"

namespace tensorcast::daemon {

Errands::Errands() : thread_([this] { Loop(); }) {}

Errands::~Errands() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void Errands::Run(std::function<void()> job) {
  absl::MutexLock lock(&mutex_);
  jobs_.push_back(std::move(job));
}

void Errands::Flush() {
  auto done = std::make_shared<absl::Notification>();
  Run([done] { done->Notify(); });
  done->WaitForNotification();
}

void Errands::Loop() {
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

}  // namespace tensorcast::daemon
