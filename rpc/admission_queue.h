// The order in which a server's calls run while it is behind, and which calls it turns away.
//
// A task waits in the line of its class. Lines are served in the order of the classes; so that no class
// starves, one task in kTurnOfOthers is the oldest of all lines. A line that is full, or has a first task
// that waited too long, refuses more with UNAVAILABLE and RetryAfter (retry_after.h): each refused caller
// gets a later time, at the rate at which tasks end, so that refused callers come back one after the other.
// Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
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
    // A line refuses more while its first task has waited this long. Callers give up later than that.
    absl::Duration max_wait = absl::Seconds(2);
    // Of what a refused caller is told.
    absl::Duration min_delay = absl::Milliseconds(100);
    absl::Duration max_delay = absl::Seconds(10);
    std::function<SteadyTime()> clock = SteadyNow;
  };

  // How many tasks `executor` must let wait for a queue with these options.
  static size_t RoomFor(const Options& options) { return kClasses * options.max_waiting; }

  // `executor` must outlive the queue's last task.
  AdmissionQueue(TaskRunner* executor, Options options);
  AdmissionQueue(const AdmissionQueue&) = delete;
  AdmissionQueue& operator=(const AdmissionQueue&) = delete;

  // Of the calls of a class. Lives as long as the queue.
  TaskRunner& line(Class of) { return lines_[static_cast<size_t>(of)]; }

  // How long the call of a node that waits longest has waited (kCall aside); max_wait at least where one was
  // refused since the previous call. Zero: the server keeps up.
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
    std::deque<Waiting> waiting_;  // guarded by the queue's mutex, like the next
    bool refused_ = false;         // since the previous TakeLag
    SteadyTime next_return_;       // when the next refused caller is to come back
  };

  absl::Status Admit(Line& line, TaskRunner::Task task) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Refuse(Line& line, SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunNext() ABSL_LOCKS_EXCLUDED(mutex_);
  Line& NextLine() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  TaskRunner* const executor_;
  const Options options_;
  absl::Mutex mutex_;
  std::array<Line, kClasses> lines_;  // what waits in them is guarded by mutex_
  size_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
  // Between two ends of tasks while others waited; a moving average.
  absl::Duration interval_ ABSL_GUARDED_BY(mutex_) = absl::Milliseconds(1);
  SteadyTime last_end_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
};

}  // namespace tensorcast::rpc
