#include "global_store/service/origin_report.h"

#include <grpcpp/channel.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/log/log.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "base/steady_time.h"
#include "proto/daemon.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "rpc/convert/convert.h"
#include "rpc/status_mapping.h"

namespace tensorcast::global_store {
namespace {

// Daemons wait five seconds for consent to an eviction; what is decided must still reach them.
constexpr absl::Duration kReportTimeout = absl::Seconds(2);
constexpr size_t kMaxAtOnce = 64;

// "3.1 of 16.0 GiB", in the unit of what is to be done.
std::string HowFar(uint64_t done, uint64_t total) {
  static constexpr std::array<std::string_view, 5> kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double size = 1;
  size_t unit = 0;
  for (; unit + 1 < kUnits.size() && static_cast<double>(total) >= size * 1024; ++unit) size *= 1024;
  return absl::StrFormat("%.1f of %.1f %s", static_cast<double>(done) / size,
                         static_cast<double>(total) / size, kUnits[unit]);
}

OriginReport ReportOf(const OriginToCheck& checked, const absl::Status& status,
                      const v1::CheckOriginResponse& answer) {
  if (!status.ok()) {
    LOG(INFO) << "the origin of " << checked.artifact_id << " on node " << checked.origin.node_id
              << " does not count for now: " << status;
    // Any other error is an answer, and about this origin only.
    const bool silent = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    return {.finding = silent ? OriginFinding::kSilent : OriginFinding::kUnclear,
            .reason = std::string(status.message())};
  }
  if (answer.intact() && answer.compare_bytes() > 0) {
    return {.finding = OriginFinding::kComparing,
            .reason = HowFar(answer.compared_bytes(), answer.compare_bytes())};
  }
  if (answer.intact()) return {.finding = OriginFinding::kIntact, .reason = answer.reason()};
  LOG(WARNING) << "the origin of " << checked.artifact_id << " on node " << checked.origin.node_id
               << " is gone, and is not a copy any more: " << answer.reason();
  return {.finding = OriginFinding::kGone, .reason = answer.reason()};
}

// The calls that are under way; gRPC's threads report their ends.
class Asking {
 public:
  Asking(const RequestContext& context, std::shared_ptr<const rpc::Credentials> credentials)
      : context_(context), credentials_(std::move(credentials)) {
    context_.deadline = std::min(context.deadline, SteadyNow() + kReportTimeout);
    context_.cancellation = Cancellation();
    given_up_ =
        context.cancellation.OnCancel([cancellation = context_.cancellation] { cancellation.Cancel(); });
  }

  void Start(const OriginToCheck& checked) {
    Call& call = calls_.emplace_back(context_, checked, credentials_);
    {
      absl::MutexLock lock(&mutex_);
      ++running_;
    }
    call.stub->async()->CheckOrigin(call.client.get(), &call.request, &call.response,
                                    [this, &call](const grpc::Status& status) { End(call, status); });
  }

  // One intact origin is enough: the calls that are still under way are then cancelled, and are waited for,
  // since they use this object. Those have no report.
  std::vector<std::optional<OriginReport>> Await() {
    {
      absl::MutexLock lock(&mutex_);
      const auto enough = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return intact_ || running_ == 0; };
      mutex_.Await(absl::Condition(&enough));
    }
    context_.cancellation.Cancel();
    absl::MutexLock lock(&mutex_);
    const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return running_ == 0; };
    mutex_.Await(absl::Condition(&ended));
    std::vector<std::optional<OriginReport>> reports;
    for (Call& call : calls_) reports.push_back(std::move(call.report));
    return reports;
  }

 private:
  struct Call {
    Call(const RequestContext& context, const OriginToCheck& origin,
         const std::shared_ptr<const rpc::Credentials>& credentials)
        : checked(origin),
          stub(v1::StoreDaemon::NewStub(rpc::MakeChannel(
              origin.grpc_address,
              {.credentials = credentials, .servers = security::Only(security::Role::kNode)}))),
          client(context) {
      *request.mutable_origin() = rpc::ToProto(origin.origin);
      request.set_artifact_id(origin.artifact_id);
    }
    const OriginToCheck& checked;
    const std::unique_ptr<v1::StoreDaemon::Stub> stub;
    rpc::ClientCall client;
    v1::CheckOriginRequest request;
    v1::CheckOriginResponse response;
    std::optional<OriginReport> report;  // set before its end is counted
  };

  void End(Call& call, const grpc::Status& grpc_status) {
    const absl::Status status = call.client.Outcome(grpc_status);
    if (!absl::IsCancelled(status)) call.report = ReportOf(call.checked, status, call.response);
    absl::MutexLock lock(&mutex_);
    intact_ |= call.report.has_value() && call.report->finding == OriginFinding::kIntact;
    --running_;
  }

  RequestContext context_;
  const std::shared_ptr<const rpc::Credentials> credentials_;
  Cancellation::Registration given_up_;
  std::list<Call> calls_;
  absl::Mutex mutex_;
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool intact_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::vector<std::optional<OriginReport>> AskForOrigins(
    const RequestContext& context, const std::vector<OriginToCheck>& origins,
    const std::shared_ptr<const rpc::Credentials>& credentials) {
  const RequestContext call = context.Child();
  Asking asking(call, credentials);
  for (size_t i = 0; i < std::min(origins.size(), kMaxAtOnce); ++i) asking.Start(origins[i]);
  return asking.Await();
}

}  // namespace tensorcast::global_store
