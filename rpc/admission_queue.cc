#include "rpc/admission_queue.h"

#include <algorithm>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "rpc/retry_after.h"

namespace tensorcast::rpc {
namespace {

constexpr int kAverageOver = 32;  // tasks

}  // namespace

// One mutex guards all lines: a decision compares them. No task runs under it.
AdmissionQueue::AdmissionQueue(TaskRunner* executor, Options options)
    : executor_(executor), options_(std::move(options)) {
  for (Line& line : lines_) line.queue_ = this;
}

// The executor gets as many turns as there are tasks; which task a turn runs is decided when it begins. The
// lock is held until the task has its turn, since a task without one would wait for ever.
absl::Status AdmissionQueue::Admit(Line& line, TaskRunner::Task task) {
  absl::MutexLock lock(&mutex_);
  const SteadyTime now = options_.clock();
  const bool full = line.waiting_.size() >= options_.max_waiting;
  const bool late = !line.waiting_.empty() && now - line.waiting_.front().since >= options_.max_wait;
  if (full || late) {
    return Refuse(line, now,
                  absl::StrCat(line.waiting_.size(), " calls of this kind wait; call again later"));
  }
  const absl::Status scheduled = executor_->Schedule([this] { RunNext(); });
  if (!scheduled.ok()) return Refuse(line, now, scheduled.message());
  line.waiting_.push_back({.task = std::move(task), .since = now});
  return absl::OkStatus();
}

// Callers that are refused are told to return one after the other, a measured task's time apart, so that
// they do not return together. Both bounds hold whatever was measured.
absl::Status AdmissionQueue::Refuse(Line& line, SteadyTime now, std::string_view why) {
  // TakeLag reports it once, as a server that is behind.
  line.refused_ = true;
  const SteadyTime first = now + options_.min_delay;
  const SteadyTime last = now + options_.max_delay;
  line.next_return_ = std::clamp(line.next_return_ + interval_, first, last);
  return RetryLater(absl::StrCat("the server is overloaded and did not begin this call: ", why),
                    line.next_return_ - now);
}

// The classes in their order. Each kTurnOfOthers-th turn goes to the task that has waited for longest, of
// whatever class, so that none of them starves.
AdmissionQueue::Line& AdmissionQueue::NextLine() {
  Line* next = nullptr;
  const bool oldest = ++taken_ % kTurnOfOthers == 0;
  for (Line& line : lines_) {
    if (line.waiting_.empty()) continue;
    const bool first = next == nullptr;
    if (first || (oldest && line.waiting_.front().since < next->waiting_.front().since)) next = &line;
  }
  CHECK(next != nullptr) << "a turn without a task";
  return *next;
}

void AdmissionQueue::RunNext() {
  TaskRunner::Task task;
  {
    absl::MutexLock lock(&mutex_);
    Line& line = NextLine();
    task = std::move(line.waiting_.front().task);
    line.waiting_.pop_front();
  }
  std::move(task)();
  task = nullptr;  // what it captured goes before the lock comes
  absl::MutexLock lock(&mutex_);
  const SteadyTime now = options_.clock();
  const bool busy = std::ranges::any_of(lines_, [](const Line& line) { return !line.waiting_.empty(); });
  // Only the time between two tasks of a busy queue says how fast the server is: an idle one waits for
  // calls.
  if (busy && last_end_ != SteadyTime::InfinitePast()) {
    interval_ += (now - last_end_ - interval_) / kAverageOver;
  }
  last_end_ = busy ? now : SteadyTime::InfinitePast();
}

// Inventories, too: a node does one thing after the other, and sends no heartbeat while its inventory waits.
absl::Duration AdmissionQueue::TakeLag() {
  absl::MutexLock lock(&mutex_);
  const SteadyTime now = options_.clock();
  absl::Duration lag = absl::ZeroDuration();
  for (const Class of : {Class::kHeartbeat, Class::kRegistration, Class::kInventory}) {
    Line& line = lines_[static_cast<size_t>(of)];
    if (!line.waiting_.empty()) lag = std::max(lag, now - line.waiting_.front().since);
    if (std::exchange(line.refused_, false)) lag = std::max(lag, options_.max_wait);
  }
  return lag;
}

}  // namespace tensorcast::rpc
