#include "global_store/service/daemon_calls.h"

#include <grpcpp/channel.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <list>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/log/log.h"
#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "proto/daemon.grpc.pb.h"
#include "proto/possession.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "rpc/convert/convert.h"

namespace tensorcast::global_store {
namespace {

// Of the node with this name, where nodes have certificates; empty: any node.
std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address, const CallCredentials& credentials,
                                         const std::string& name = "") {
  return rpc::MakeChannel(
      address,
      {.credentials = credentials, .servers = security::Only(security::Role::kNode), .server_name = name});
}

// Daemons wait five seconds for consent to an eviction; what is decided must still reach them.
constexpr absl::Duration kReportTimeout = absl::Seconds(2);
// Each origin that is asked about is a call of its own: a bound for what one request makes the store do.
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
              << " does not count as a copy for now: " << status;
    // Any other error is an answer, and about this origin only.
    const bool silent = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    return {.finding = silent ? OriginFinding::kSilent : OriginFinding::kUnclear,
            .reason = std::string(status.message())};
  }
  // Others can replace these objects at any time, so they do not count as a copy, whatever they hold now.
  if (answer.mutable_objects()) return {.finding = OriginFinding::kMutable};
  if (answer.intact() && answer.compare_bytes() > 0) {
    return {.finding = OriginFinding::kComparing,
            .reason = HowFar(answer.compared_bytes(), answer.compare_bytes())};
  }
  if (answer.intact()) return {.finding = OriginFinding::kIntact, .reason = answer.reason()};
  LOG(WARNING) << "the origin of " << checked.artifact_id << " on node " << checked.origin.node_id
               << " is gone, and is no longer a copy: " << answer.reason()
               << "; keep a replica, or import the artifact again";
  return {.finding = OriginFinding::kGone, .reason = answer.reason()};
}

// The calls that are under way; gRPC's threads report their ends. Await must be called before the object
// goes, since those threads use it.
class Asking {
 public:
  Asking(const RequestContext& context, CallCredentials credentials)
      : context_(context), credentials_(std::move(credentials)) {
    context_.deadline = std::min(context.deadline, SteadyNow() + kReportTimeout);
    // This object has a cancellation of its own, which the caller's triggers: Await ends the remaining calls
    // by it, and the caller goes on.
    context_.cancellation = Cancellation();
    given_up_ =
        context.cancellation.OnCancel([cancellation = context_.cancellation] { cancellation.Cancel(); });
  }

  void Start(const OriginToCheck& checked) {
    Call& call = calls_.emplace_back(context_, checked, credentials_);
    // The call is counted before it begins: its end may be reported before the next line runs.
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
    Call(const RequestContext& context, const OriginToCheck& origin, const CallCredentials& credentials)
        : checked(origin),
          stub(v1::StoreDaemon::NewStub(ChannelTo(origin.grpc_address, credentials))),
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
    // A call that was given up says nothing about its origin.
    if (!absl::IsCancelled(status)) call.report = ReportOf(call.checked, status, call.response);
    absl::MutexLock lock(&mutex_);
    intact_ |= call.report.has_value() && call.report->finding == OriginFinding::kIntact;
    --running_;
  }

  RequestContext context_;
  const CallCredentials credentials_;
  Cancellation::Registration given_up_;
  std::list<Call> calls_;
  absl::Mutex mutex_;
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool intact_ ABSL_GUARDED_BY(mutex_) = false;
};

using Stub = v1::Possession::Stub;

// Daemons wait five seconds for consent to an eviction, in which this may be done several times.
constexpr absl::Duration kProofTimeout = absl::Seconds(1);
constexpr absl::Duration kObjectProofTimeout = absl::Seconds(4);  // many requests to an object store
constexpr int kRanges = 16;
constexpr uint32_t kRangeBytes = 4096;

// There is no retry: the time is short, and a holder that does not answer counts as unproven.
rpc::CallOptions Once() {
  return {.retry_for = absl::ZeroDuration(), .what = "ask a daemon for proof of a copy"};
}

// Ranges at random, with a nonce, so that no answer can be prepared or repeated without the bytes. All
// holders are asked the same.
v1::ProveRequest MakeQuestion(const CopiesToProve& copies) {
  v1::ProveRequest question;
  question.set_artifact_id(copies.artifact_id);
  question.set_nonce(NewUuid());
  absl::BitGen random;
  // An image smaller than a range is read whole.
  const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(kRangeBytes, copies.image_bytes));
  for (int i = 0; i < kRanges; ++i) {
    v1::ProveRequest::Range& range = *question.add_ranges();
    range.set_offset(absl::Uniform<uint64_t>(absl::IntervalClosed, random, 0, copies.image_bytes - bytes));
    range.set_bytes(bytes);
  }
  return question;
}

absl::StatusOr<std::string> Ask(const RequestContext& context, v1::ProveRequest question,
                                const CopyToProve& copy, const CallCredentials& credentials) {
  question.set_replica_id(copy.replica.replica_id);
  if (copy.origin.has_value()) *question.mutable_origin() = rpc::ToProto(*copy.origin);
  TC_ASSIGN_OR_RETURN(
      v1::ProveResponse answer,
      rpc::CallUnary(*v1::Possession::NewStub(ChannelTo(copy.grpc_address, credentials, copy.node_name)),
                     &Stub::Prove, context, question, Once()));
  if (answer.digest().empty()) {
    return absl::InternalError(absl::StrCat("prove a copy: node ", copy.node_name,
                                            " answered without a digest; look into the log of its daemon"));
  }
  return std::move(*answer.mutable_digest());
}

}  // namespace

absl::Status AskToMaterialize(const RequestContext& context, const std::string& artifact_id,
                              const std::string& address, const CallCredentials& credentials) {
  auto stub = v1::StoreDaemon::NewStub(ChannelTo(address, credentials));
  v1::MaterializeReplicaRequest request;
  request.set_artifact_id(artifact_id);
  request.mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
  // The stream has progress first. A daemon that dies in the middle ends it without a result.
  bool made = false;
  TC_RETURN_IF_ERROR(rpc::CallServerStream(*stub, &v1::StoreDaemon::Stub::MaterializeReplica, context,
                                           request, [&](v1::MaterializeReplicaResponse&& response) {
                                             made = made || response.has_result();
                                             return absl::OkStatus();
                                           }));
  return made ? absl::OkStatus()
              : absl::InternalError(absl::StrCat(
                    "make a replica of ", artifact_id, " at ", address,
                    ": the daemon ended the stream without a result; look into the daemon's log"));
}

std::vector<std::optional<OriginReport>> AskForOrigins(const RequestContext& context,
                                                       const std::vector<OriginToCheck>& origins,
                                                       const CallCredentials& credentials) {
  const RequestContext call = context.Child();
  Asking asking(call, credentials);
  for (size_t i = 0; i < std::min(origins.size(), kMaxAtOnce); ++i) asking.Start(origins[i]);
  return asking.Await();
}

Proofs ProveCopies(const RequestContext& context, const CopiesToProve& copies,
                   const CallCredentials& credentials) {
  RequestContext call = context.Child();
  const bool reads_objects = std::ranges::any_of(copies.copies, [](const CopyToProve& copy) {
    return copy.origin.has_value() && IsShared(*copy.origin);
  });
  call.deadline =
      std::min(context.deadline, SteadyNow() + (reads_objects ? kObjectProofTimeout : kProofTimeout));
  // The evicting node's own bytes are the measure: the store has none.
  const v1::ProveRequest question = MakeQuestion(copies);
  absl::StatusOr<std::string> own = absl::UnknownError("not asked");
  std::vector<absl::StatusOr<std::string>> answers(copies.copies.size(), own);
  // There are a few threads at most: Evictions bounds how many holders are named at once.
  std::vector<std::thread> askers;
  try {
    for (size_t i = 0; i < copies.copies.size(); ++i) {
      askers.emplace_back([&, i] { answers[i] = Ask(call, question, copies.copies[i], credentials); });
    }
  } catch (const std::system_error& error) {
    // The holders that are not asked count as unproven, like those that do not answer.
    LOG(WARNING)
        << "ask the holders of " << copies.artifact_id
        << " for a proof: some holders are not asked, because the global store cannot start a thread ("
        << error.what() << "); raise the limit of threads (ulimit -u, TasksMax)";
  }
  own = Ask(call, question, copies.evicting, credentials);
  for (std::thread& asker : askers) asker.join();
  Proofs proofs;
  for (size_t i = 0; i < copies.copies.size(); ++i) {
    const CopyToProve& copy = copies.copies[i];
    const bool proven = own.ok() && answers[i].ok() && *own == *answers[i];
    // A copy that does not answer counts as unproven: an eviction may wait, a last copy may not go.
    (proven ? proofs.proven : proofs.unproven).push_back(copy.replica);
    LOG_IF(WARNING, !proven)
        << "node " << copy.node_name << " reports a copy of " << copies.artifact_id
        << ", but the copy is not proven: "
        << (!own.ok() ? Annotate(own.status(), "get the proof of the replica to evict")
            : answers[i].ok()
                ? absl::DataLossError(
                      "the bytes of the copy differ; drop this copy, and get or import the artifact again")
                : answers[i].status());
  }
  return proofs;
}

absl::StatusOr<bool> AskToDigest(const RequestContext& context, const CopyToProve& accused,
                                 const CallCredentials& credentials) {
  v1::DigestAgainRequest request;
  request.set_replica_id(accused.replica.replica_id);
  TC_ASSIGN_OR_RETURN(const v1::DigestAgainResponse answer,
                      rpc::CallUnary(*v1::Possession::NewStub(
                                         ChannelTo(accused.grpc_address, credentials, accused.node_name)),
                                     &Stub::DigestAgain, context, request));
  return answer.matches();
}

}  // namespace tensorcast::global_store
