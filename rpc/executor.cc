#include "rpc/executor.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tensorcast::rpc {

Executor::Executor(const Options& options) : options_(options) {}

Executor::~Executor() {
  std::unordered_map<std::thread::id, std::thread> running;
  std::vector<std::thread> left;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    running.swap(running_);
    left.swap(left_);
  }
  for (auto& [id, thread] : running) thread.join();
  for (std::thread& thread : left) thread.join();
}

// The bound is on tasks that wait, so that a server under a flood says so at once and does not answer every
// caller too late. A thread cannot join itself: the next Schedule joins the threads that left, or the
// destructor does.
absl::Status Executor::Schedule(Task task) {
  std::vector<std::thread> left;
  {
    absl::MutexLock lock(&mutex_);
    if (queue_.size() >= options_.max_queued) {
      return absl::UnavailableError(absl::StrCat("run a call: ", queue_.size(), " requests wait for one of ",
                                                 options_.max_threads, " threads; try again later"));
    }
    queue_.push_back(std::move(task));
    if (absl::Status grown = GrowIfNeeded(); !grown.ok()) {
      // The lock was held since the push, so the last task is still this one. It is destroyed without the
      // lock: what it captured may call this executor.
      task = std::move(queue_.back());
      queue_.pop_back();
      return grown;
    }
    left.swap(left_);
  }
  for (std::thread& thread : left) thread.join();
  return absl::OkStatus();
}

absl::Status Executor::GrowIfNeeded() {
  // An idle thread that has yet to wake is counted as idle still, so the queue's length is compared, not
  // whether there is any.
  if (queue_.size() <= idle_ || running_.size() >= static_cast<size_t>(options_.max_threads)) {
    return absl::OkStatus();
  }
  try {
    std::thread thread([this] { Run(); });
    const std::thread::id id = thread.get_id();
    running_.emplace(id, std::move(thread));
  } catch (const std::system_error& error) {
    // With a thread at least the task is run later. With none it would never be.
    if (running_.empty()) {
      return absl::UnavailableError(
          absl::StrCat("run a call: the server cannot start a thread (", error.what(),
                       "); raise the server's limit of threads, or try again later"));
    }
  }
  return absl::OkStatus();
}

// The life of a thread: it waits for work, idle, up to idle_timeout; takes a task and runs it without the
// lock; ends when it found no work. The thread moves its own handle to `left_`, so that it can be joined.
void Executor::Run() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    ++idle_;
    mutex_.AwaitWithTimeout(absl::Condition(this, &Executor::HasWork), options_.idle_timeout);
    --idle_;
    // Idle for too long, or stopping: a queue with tasks in it is worked off in either case.
    if (queue_.empty()) break;
    Task task = std::move(queue_.front());
    queue_.pop_front();
    mutex_.Unlock();
    std::move(task)();
    task = nullptr;  // what it captured goes before the lock comes back
    mutex_.Lock();
  }
  auto self = running_.find(std::this_thread::get_id());
  if (self != running_.end()) {  // else the destructor took it to join it
    left_.push_back(std::move(self->second));
    running_.erase(self);
  }
}

int Executor::threads() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(running_.size());
}

}  // namespace tensorcast::rpc
