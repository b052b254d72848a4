#include "daemon/service/replication_tasks.h"

#include <set>
#include <vector>

#include "absl/log/log.h"
#include "otel/api/span.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon {
namespace {

// An attempt may wait for sources for long; one that hangs must not keep its place for ever.
constexpr absl::Duration kLongestAttempt = absl::Hours(12);

}  // namespace

// An attempt goes through the table once. Answered begins it for a task that the store names, End notes how
// it ended, Report tells that, and the answer to that report forgets it. An attempt at a task that was taken
// back is cancelled, and is forgotten at its end without a report.
void ReplicationTasks::Drain() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
}

void ReplicationTasks::Stop() {
  std::vector<Cancellation> running;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    stopping_ = true;
    for (const auto& [task_id, attempt] : attempts_) running.push_back(attempt.cancellation);
  }
  // The lock is not held here: callbacks of a cancellation run in this thread, and may end an attempt.
  for (const Cancellation& cancellation : running) cancellation.Cancel();
  absl::MutexLock lock(&mutex_);
  const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const auto& [task_id, attempt] : attempts_) {
      if (!attempt.ended.has_value()) return false;
    }
    return true;
  };
  mutex_.Await(absl::Condition(&ended));
}

void ReplicationTasks::Report(v1::HeartbeatRequest* heartbeat) {
  absl::MutexLock lock(&mutex_);
  for (auto& [task_id, attempt] : attempts_) {
    // Neither what was taken back is reported, nor what this stop cut short: the store gives that to the next
    // daemon.
    if (attempt.taken_back || (stopping_ && attempt.ended.has_value() && !attempt.ended->ok())) continue;
    v1::ReplicationTaskReport* report = heartbeat->add_tasks();
    report->set_task_id(task_id);
    report->set_bytes(attempt.bytes);
    report->set_bytes_total(attempt.bytes_total);
    // An end is told until an answer comes: Answered then forgets the attempt.
    attempt.told = attempt.ended.has_value();
    if (!attempt.told) continue;
    report->set_ended(true);
    if (!attempt.ended->ok()) *report->mutable_error() = rpc::ToProto(*attempt.ended);
  }
}

void ReplicationTasks::Answered(const v1::HeartbeatResponse& response) {
  std::set<std::string> wanted;
  for (const v1::ReplicationTask& task : response.tasks()) wanted.insert(task.task_id());
  std::vector<Cancellation> taken_back;
  {
    absl::MutexLock lock(&mutex_);
    // This answer is to the report that told their ends.
    std::erase_if(attempts_, [](const auto& entry) { return entry.second.told; });
    for (auto& [task_id, attempt] : attempts_) {
      // One that ended since its report is told with the next; the store does not know of that yet.
      if (wanted.contains(task_id) || attempt.taken_back || attempt.ended.has_value()) continue;
      attempt.taken_back = true;
      taken_back.push_back(attempt.cancellation);
    }
  }
  for (const Cancellation& cancellation : taken_back) cancellation.Cancel();
  for (const v1::ReplicationTask& task : response.tasks()) Begin(task);
}

void ReplicationTasks::Begin(const v1::ReplicationTask& task) {
  Cancellation cancellation;
  {
    absl::MutexLock lock(&mutex_);
    if (draining_) return;
    const auto [attempt, is_new] = attempts_.try_emplace(task.task_id());
    // The store names a task in every answer while it is open; one attempt at a time is made.
    if (!is_new) return;
    attempt->second.cancellation = cancellation;
  }
  // The attempt is in the table before it runs, so that its end finds it there.
  const absl::Status scheduled =
      executor_.Schedule([this, task, cancellation] { End(task.task_id(), Run(task, cancellation)); });
  // Without a thread the attempt has failed, and is reported so.
  if (!scheduled.ok()) End(task.task_id(), scheduled);
}

absl::Status ReplicationTasks::Run(const v1::ReplicationTask& task, const Cancellation& cancellation) {
  RequestContext context = RequestContext::Background(kLongestAttempt);
  context.cancellation = cancellation;
  // A trace of its own, which goes on long after that of the request that it is linked to.
  const otel::SpanLink asked{.context =
                                 TraceContext::FromTraceparent(task.traceparent()).value_or(TraceContext())};
  otel::SpanOptions options;
  if (asked.context.IsValid()) options.links = {&asked, 1};
  otel::Span span("StoreDaemon/FulfilTask", TraceContext(),
                  {{otel::attr::kArtifactId, task.artifact_id()}, {otel::attr::kOperationType, "replicate"}},
                  options);
  span.AttachTo(&context);
  const otel::Scope scope(context.trace);
  LOG(INFO) << "artifact " << task.artifact_id() << " is requested here, "
            << (task.asked_by().empty() ? "" : "by " + task.asked_by() + ", ") << "as task "
            << task.task_id();
  absl::Status status = span.Record(materialize_(context, task, [&](const TransferProgress& progress) {
    absl::MutexLock lock(&mutex_);
    Attempt& attempt = attempts_.find(task.task_id())->second;
    attempt.bytes = progress.bytes_done;
    attempt.bytes_total = progress.bytes_total;
  }));
  LOG_IF(WARNING, !status.ok()) << "task " << task.task_id() << " for " << task.artifact_id()
                                << " failed: " << status;
  return status;
}

void ReplicationTasks::End(const std::string& task_id, const absl::Status& status) {
  bool report_soon = false;
  {
    absl::MutexLock lock(&mutex_);
    const auto attempt = attempts_.find(task_id);
    // The store has taken the task back, and does not wait for its end.
    if (attempt->second.taken_back && !stopping_) {
      attempts_.erase(attempt);
      return;
    }
    attempt->second.ended = status;
    if (stopping_) return;
    // The global store learns of a success by the report of the replica. Beside other tasks the heartbeat
    // comes soon all the same: more tasks may wait for this one's place.
    report_soon = !status.ok() || attempts_.size() > 1;
  }
  if (report_soon) on_ended_();
}

}  // namespace tensorcast::daemon
