#include "daemon/service/wishes.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "otel/api/span.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon {
namespace {

// An attempt may wait for sources for long; one that hangs must not keep its place for ever.
constexpr absl::Duration kLongestAttempt = absl::Hours(12);

}  // namespace

void Wishes::Drain() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
}

void Wishes::Stop() {
  std::vector<Cancellation> running;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    stopping_ = true;
    for (const auto& [wish_id, attempt] : attempts_) running.push_back(attempt.cancellation);
  }
  for (const Cancellation& cancellation : running) cancellation.Cancel();
  absl::MutexLock lock(&mutex_);
  const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const auto& [wish_id, attempt] : attempts_) {
      if (!attempt.ended.has_value()) return false;
    }
    return true;
  };
  mutex_.Await(absl::Condition(&ended));
}

void Wishes::Report(v1::HeartbeatRequest* heartbeat) {
  absl::MutexLock lock(&mutex_);
  for (auto& [wish_id, attempt] : attempts_) {
    if (attempt.taken_back || (stopping_ && attempt.ended.has_value() && !attempt.ended->ok())) continue;
    v1::WishReport* report = heartbeat->add_wishes();
    report->set_wish_id(wish_id);
    report->set_bytes(attempt.bytes);
    report->set_bytes_total(attempt.bytes_total);
    attempt.told = attempt.ended.has_value();
    if (!attempt.told) continue;
    report->set_ended(true);
    if (!attempt.ended->ok()) *report->mutable_error() = rpc::ToProto(*attempt.ended);
  }
}

void Wishes::Answered(const v1::HeartbeatResponse& response) {
  std::set<std::string> wanted;
  for (const v1::Wish& wish : response.wishes()) wanted.insert(wish.wish_id());
  std::vector<Cancellation> taken_back;
  {
    absl::MutexLock lock(&mutex_);
    std::erase_if(attempts_, [](const auto& entry) { return entry.second.told; });
    for (auto& [wish_id, attempt] : attempts_) {
      // One that ended since its report is told with the next; the store does not know of that yet.
      if (wanted.contains(wish_id) || attempt.taken_back || attempt.ended.has_value()) continue;
      attempt.taken_back = true;
      taken_back.push_back(attempt.cancellation);
    }
  }
  for (const Cancellation& cancellation : taken_back) cancellation.Cancel();
  for (const v1::Wish& wish : response.wishes()) Begin(wish);
}

void Wishes::Begin(const v1::Wish& wish) {
  Cancellation cancellation;
  {
    absl::MutexLock lock(&mutex_);
    if (draining_) return;
    const auto [attempt, is_new] = attempts_.try_emplace(wish.wish_id());
    if (!is_new) return;
    attempt->second.cancellation = cancellation;
  }
  const absl::Status scheduled =
      executor_.Schedule([this, wish, cancellation] { End(wish.wish_id(), Run(wish, cancellation)); });
  if (!scheduled.ok()) End(wish.wish_id(), scheduled);
}

absl::Status Wishes::Run(const v1::Wish& wish, const Cancellation& cancellation) {
  RequestContext context = RequestContext::Background(kLongestAttempt);
  context.cancellation = cancellation;
  // A trace of its own, which goes on long after that of the request that it is linked to.
  const otel::SpanLink asked{.context =
                                 TraceContext::FromTraceparent(wish.traceparent()).value_or(TraceContext())};
  otel::SpanOptions options;
  if (asked.context.IsValid()) options.links = {&asked, 1};
  otel::Span span("StoreDaemon/FulfilWish", TraceContext(),
                  {{otel::attr::kArtifactId, wish.artifact_id()}, {otel::attr::kOperationType, "replicate"}},
                  options);
  span.AttachTo(&context);
  const otel::Scope scope(context.trace);
  LOG(INFO) << "artifact " << wish.artifact_id() << " is wished for here, "
            << (wish.asked_by().empty() ? "" : "by " + wish.asked_by() + ", ") << "as wish "
            << wish.wish_id();
  absl::Status status = span.Record(materialize_(context, wish, [&](const TransferProgress& progress) {
    absl::MutexLock lock(&mutex_);
    Attempt& attempt = attempts_.find(wish.wish_id())->second;
    attempt.bytes = progress.bytes_done;
    attempt.bytes_total = progress.bytes_total;
  }));
  LOG_IF(WARNING, !status.ok()) << "wish " << wish.wish_id() << " for " << wish.artifact_id()
                                << " failed: " << status;
  return status;
}

void Wishes::End(const std::string& wish_id, const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    const auto attempt = attempts_.find(wish_id);
    if (attempt->second.taken_back && !stopping_) {
      attempts_.erase(attempt);
      return;
    }
    attempt->second.ended = status;
    if (stopping_) return;
  }
  on_ended_();
}

}  // namespace tensorcast::daemon
