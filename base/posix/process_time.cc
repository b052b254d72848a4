#include "base/posix/process_time.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/aside.h"
#include "base/posix/unique_fd.h"

namespace tensorcast {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(10);
// A tick that is late by less is the timer's doing.
constexpr absl::Duration kLate = absl::Milliseconds(5);
// To look at the threads costs some microseconds each.
constexpr absl::Duration kLookEvery = absl::Milliseconds(200);
// A new watch has no figures until the first look, so this one comes sooner.
constexpr absl::Duration kFirstLookEvery = absl::Milliseconds(50);
// An older look is repeated for the figures at the end.
constexpr absl::Duration kFreshLook = absl::Milliseconds(20);
// What lasted less has too few ticks to say anything.
constexpr absl::Duration kWorthALook = absl::Milliseconds(100);

// "<ran> <waited> <turns>", in nanoseconds.
std::optional<ProcessTime::ThreadTime> ReadTimes(int fd) {
  char text[96];
  const ssize_t bytes = pread(fd, text, sizeof(text) - 1, 0);
  if (bytes <= 0) return std::nullopt;
  text[bytes] = '\0';
  long long ran = 0;
  long long waited = 0;
  if (std::sscanf(text, "%lld %lld", &ran, &waited) != 2) return std::nullopt;
  return ProcessTime::ThreadTime{absl::Nanoseconds(ran), absl::Nanoseconds(waited)};
}

std::optional<ProcessTime::ThreadTime> TimesOf(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return fd ? ReadTimes(fd.get()) : std::nullopt;
}

}  // namespace

struct ProcessTime::Watch::Threads {
  SteadyTime at;
  absl::flat_hash_map<pid_t, ThreadTime> times;
};

// It lives as long as the process, and so does its thread.
ProcessTime& ProcessTime::Get() {
  static ProcessTime* const process = new ProcessTime();
  return *process;
}

ProcessTime::ProcessTime() {
  if (RunDetached([this] { Run(); })) return;
  LOG(WARNING) << "measure the time of this process: no thread can be started, so transfers report no CPU "
                  "times; raise the limit of threads (`ulimit -u`), and start this process again";
}

absl::Duration ProcessTime::Held::Until(SteadyTime now) const {
  // `total` has all of an interval from the moment when it was noted: what is still to come is taken off.
  return total - std::max(until - now, absl::ZeroDuration());
}

void ProcessTime::NoteHeld(LimitedDirection direction, SteadyTime from, SteadyTime until) {
  absl::MutexLock lock(&mutex_);
  Held& held = held_[static_cast<size_t>(direction)];
  held.total += std::max(until - std::max(from, held.until), absl::ZeroDuration());
  held.until = std::max(held.until, until);
}

// The thread of the clock. Each turn sleeps one tick and compares how late it woke with its own run delay. It
// looks at all threads now and then, for the watches that exist. Without a watch it waits and costs nothing.
void ProcessTime::Run() {
  const UniqueFd own(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &ProcessTime::HasWatches));
    }
    const SteadyTime before = SteadyNow();
    absl::Duration waited_before;
    if (const auto times = own ? ReadTimes(own.get()) : std::nullopt) waited_before = times->waited;
    absl::SleepFor(kTick);
    const absl::Duration late = SteadyNow() - before - kTick;
    const std::optional<ThreadTime> times = own ? ReadTimes(own.get()) : std::nullopt;
    bool look = false;
    {
      absl::MutexLock lock(&mutex_);
      // A thread that had to wait for a CPU is late, too: that is in its run delay. A thread of a process
      // that is stopped wants no CPU.
      if (times.has_value()) {
        const absl::Duration stopped = late - (times->waited - waited_before);
        if (stopped > kLate) stopped_ += stopped;
      }
      const bool first =
          std::ranges::any_of(watches_, [](const Watch* watch) { return watch->baseline_ == nullptr; });
      const absl::Duration every = first ? kFirstLookEvery : kLookEvery;
      look = latest_ == nullptr || SteadyNow() - latest_->at >= every;
    }
    if (look) LookAtThreads();
  }
}

std::shared_ptr<const ProcessTime::Threads> ProcessTime::LookAtThreads() {
  // Without the lock: a process may have hundreds of threads, and each is a file to open.
  auto threads = std::make_shared<Threads>();
  threads->at = SteadyNow();
  if (DIR* const folder = opendir("/proc/self/task"); folder != nullptr) {
    while (const dirent* const entry = readdir(folder)) {
      pid_t thread = 0;
      if (!absl::SimpleAtoi(entry->d_name, &thread)) continue;
      // One that ended meanwhile has none.
      const auto times = TimesOf(absl::StrCat("/proc/self/task/", entry->d_name, "/schedstat"));
      if (times.has_value()) threads->times.emplace(thread, *times);
    }
    closedir(folder);
  }
  absl::MutexLock lock(&mutex_);
  latest_ = threads;
  for (Watch* const watch : watches_) {
    if (watch->baseline_ == nullptr) watch->baseline_ = threads;
  }
  return threads;
}

ProcessTime::Watch::Watch(LimitedDirection direction) : direction_(direction), begin_(SteadyNow()) {
  ProcessTime& process = Get();
  absl::MutexLock lock(&process.mutex_);
  stopped_before_ = process.stopped_;
  held_before_ = process.held_[static_cast<size_t>(direction)].Until(begin_);
  process.watches_.insert(this);
}

ProcessTime::Watch::~Watch() {
  ProcessTime& process = Get();
  absl::MutexLock lock(&process.mutex_);
  process.watches_.erase(this);
}

// Runs on the caller's thread. The lock covers the copies of pointers and sums; the figures of the threads
// never change once they are made.
WallTime ProcessTime::Watch::Elapsed() const {
  ProcessTime& process = Get();
  const SteadyTime now = SteadyNow();
  WallTime time;
  time.whole = now - begin_;
  std::shared_ptr<const Threads> from;
  std::shared_ptr<const Threads> to;
  {
    absl::MutexLock lock(&process.mutex_);
    time[TimeUse::kStopped] = process.stopped_ - stopped_before_;
    time[TimeUse::kLimiter] = process.held_[static_cast<size_t>(direction_)].Until(now) - held_before_;
    from = baseline_;
    to = process.latest_;
  }
  if (from == nullptr || time.whole < kWorthALook) return time;
  if (now - to->at > kFreshLook) to = process.LookAtThreads();
  const absl::Duration seen = to->at - from->at;
  if (seen <= absl::ZeroDuration()) return time;
  // An average over all threads would hide one that is busy all the time and holds up the rest.
  ThreadTime busiest;
  for (const auto& [thread, end] : to->times) {
    ThreadTime spent = end;
    const auto begin = from->times.find(thread);
    // An id that was given to another thread meanwhile counts from that thread's beginning.
    if (begin != from->times.end() && begin->second.ran <= end.ran) {
      spent.ran -= begin->second.ran;
      spent.waited -= begin->second.waited;
    }
    if (spent.ran + spent.waited > busiest.ran + busiest.waited) busiest = spent;
  }
  // What was before the first look at the threads went as the rest did.
  const double scale = absl::FDivDuration(time.whole, seen);
  time[TimeUse::kWorking] = busiest.ran * scale;
  time[TimeUse::kNoCpu] = busiest.waited * scale;
  return time;
}

}  // namespace tensorcast
