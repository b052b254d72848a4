// A pool of threads for handlers that may block. It grows on demand up to a max number of threads. Threads
// that are idle for a while end. Thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tensorcast::rpc {

// Runs tasks on threads that may block. Thread-safe.
class TaskRunner {
 public:
  using Task = absl::AnyInvocable<void() &&>;
  virtual ~TaskRunner() = default;

  // UNAVAILABLE if there is no room for the task, which is then destroyed without running.
  virtual absl::Status Schedule(Task task) = 0;
};

class Executor final : public TaskRunner {
 public:
  struct Options {
    int max_threads = 64;
    size_t max_queued = 4096;  // max number of tasks that wait for a thread
    absl::Duration idle_timeout = absl::Seconds(10);
  };

  Executor() : Executor(Options{}) {}
  explicit Executor(const Options& options);
  // Runs the queued tasks, then joins the threads. The executor must outlive the rpc::Server with handlers
  // that use it.
  ~Executor() override;

  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // UNAVAILABLE when max_queued tasks already wait, or when there is no thread and none can be started.
  absl::Status Schedule(Task task) override;

  int threads() const;

 private:
  // Starts a thread unless enough are idle or the max number is reached. Returns an error only if no thread
  // could run the task.
  absl::Status GrowIfNeeded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); }

  const Options options_;
  mutable absl::Mutex mutex_;
  std::deque<Task> queue_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::thread::id, std::thread> running_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> left_ ABSL_GUARDED_BY(mutex_);  // ended threads, to be joined
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tensorcast::rpc
