// Decides in which order an overloaded server runs its calls, and which calls it refuses.
//
// The task of a call waits in the line of the call's class. Lines are served in the order of the classes, but
// every kTurnOfOthers-th task is the oldest of all lines, so that no class starves. A line refuses further
// tasks if it is full, or if its first task has waited too long. The error is UNAVAILABLE with RetryAfter
// (retry_after.h): a line gives each refused caller a later time than the last, up to max_delay. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "rpc/executor.h"

namespace tensorcast::rpc {

class AdmissionQueue {
 public:
  // In the order in which they are served.
  enum class Class { kHeartbeat, kCall, kRegistration, kInventory };
  static constexpr int kClasses = 4;
  static constexpr int kTurnOfOthers = 8;

  struct Options {
    size_t max_waiting = 4096;  // tasks in each line
    // A line refuses further tasks while its first task has waited for this time. Must be shorter than the
    // callers' timeouts.
    absl::Duration max_wait = absl::Seconds(2);
    // The min and max delay for refused callers.
    absl::Duration min_delay = absl::Milliseconds(100);
    absl::Duration max_delay = absl::Seconds(10);
    std::function<SteadyTime()> clock = SteadyNow;
  };

  // The number of waiting tasks that the executor must allow for a queue with these options.
  static size_t RoomFor(const Options& options) { return kClasses * options.max_waiting; }

  // `executor` must outlive the queue's last task.
  AdmissionQueue(TaskRunner* executor, Options options);
  AdmissionQueue(const AdmissionQueue&) = delete;
  AdmissionQueue& operator=(const AdmissionQueue&) = delete;

  // The line for the calls of a class. Lives as long as the queue.
  TaskRunner& line(Class of) { return lines_[static_cast<size_t>(of)]; }

  // How far the server is behind with nodes' calls (all classes except kCall): the longest wait of a call
  // that waits now. At least max_wait if a call was refused since the previous TakeLag.
  absl::Duration TakeLag();

 private:
  struct Waiting {
    TaskRunner::Task task;
    SteadyTime since;
  };
  class Line final : public TaskRunner {
   public:
    absl::Status Schedule(Task task) override { return queue_->Admit(*this, std::move(task)); }

   private:
    friend class AdmissionQueue;
    AdmissionQueue* queue_ = nullptr;
    std::deque<Waiting> waiting_;  // guarded by the queue's mutex, like the next two
    bool refused_ = false;         // since the previous TakeLag
    SteadyTime next_return_;       // the time that the next refused caller gets
  };

  absl::Status Admit(Line& line, TaskRunner::Task task) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Refuse(Line& line, SteadyTime now, std::string_view why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunNext() ABSL_LOCKS_EXCLUDED(mutex_);
  Line& NextLine() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  TaskRunner* const executor_;
  const Options options_;
  absl::Mutex mutex_;
  std::array<Line, kClasses> lines_;  // their waiting tasks are guarded by mutex_
  size_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
  // The time between the ends of two tasks while others waited; a moving average.
  absl::Duration interval_ ABSL_GUARDED_BY(mutex_) = absl::Milliseconds(1);
  SteadyTime last_end_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
};

}  // namespace tensorcast::rpc
