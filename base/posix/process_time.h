// Measures where this process's time goes while it moves bytes: how long its busiest thread ran and waited
// for a CPU, how long no thread could run, and how long a rate limit held transfers back.
//
// One object per process. Its thread ticks while there is a Watch and sleeps otherwise. If the kernel keeps
// no scheduler figures (/proc/self/task/*/schedstat), the times that depend on them stay zero. Thread-safe.
#pragma once

#include <sys/types.h>

#include <array>
#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "base/wall_time.h"

namespace tensorcast {

enum class LimitedDirection : uint8_t { kSend, kReceive };

class ProcessTime {
 public:
  // The scheduler's figures for a thread since the thread began.
  struct ThreadTime {
    absl::Duration ran;
    absl::Duration waited;  // runnable, without a CPU
  };

  static ProcessTime& Get();

  // Measures from its construction on.
  class Watch {
   public:
    explicit Watch(LimitedDirection direction);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    // Fills `whole` and the uses kLimiter, kWorking, kNoCpu and kStopped. kWorking and kNoCpu stay zero if
    // `whole` is below 0.1 s.
    WallTime Elapsed() const;

   private:
    friend class ProcessTime;
    struct Threads;
    const LimitedDirection direction_;
    const SteadyTime begin_;
    // ProcessTime's mutex guards the next three members.
    absl::Duration stopped_before_;
    absl::Duration held_before_;
    std::shared_ptr<const Threads> baseline_;  // null until the figures were first read
  };

  // Records that a limit makes transfers of this direction wait in the interval [`from`, `until`). `until`
  // may be in the future. Overlapping intervals count once. REQUIRES: `from` is about now.
  void NoteHeld(LimitedDirection direction, SteadyTime from, SteadyTime until) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Threads = Watch::Threads;
  struct Held {
    absl::Duration total;
    SteadyTime until = SteadyTime::InfinitePast();
    absl::Duration Until(SteadyTime now) const;
  };

  ProcessTime();
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasWatches() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !watches_.empty(); }
  // Reads all threads' figures and makes them the baseline of the watches that have no baseline yet.
  std::shared_ptr<const Threads> LookAtThreads() ABSL_LOCKS_EXCLUDED(mutex_);

  mutable absl::Mutex mutex_;
  std::set<Watch*> watches_ ABSL_GUARDED_BY(mutex_);
  absl::Duration stopped_ ABSL_GUARDED_BY(mutex_);
  std::array<Held, 2> held_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Threads> latest_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
