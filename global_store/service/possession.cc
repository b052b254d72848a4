#include "global_store/service/possession.h"

#include <grpcpp/channel.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/log/log.h"
#include "absl/random/random.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "proto/possession.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "rpc/convert/convert.h"

namespace tensorcast::global_store {
namespace {

using Stub = v1::Possession::Stub;

// Daemons wait five seconds for consent to an eviction, in which this may be done several times.
constexpr absl::Duration kProofTimeout = absl::Seconds(1);
constexpr int kRanges = 16;
constexpr uint32_t kRangeBytes = 4096;

rpc::CallOptions Once() { return {.retry_for = absl::ZeroDuration(), .what = "proof of possession"}; }

// The node that it must be, where nodes have certificates.
std::unique_ptr<Stub> StubOf(const CopyToProve& copy,
                             const std::shared_ptr<const rpc::Credentials>& credentials) {
  return v1::Possession::NewStub(
      rpc::MakeChannel(copy.grpc_address, {.credentials = credentials,
                                           .servers = security::Only(security::Role::kNode),
                                           .server_name = copy.node_name}));
}

// Ranges at random, with a nonce, so that no answer can be prepared or repeated without the bytes. All
// holders are asked the same.
v1::ProveRequest MakeQuestion(const CopiesToProve& copies) {
  v1::ProveRequest question;
  question.set_artifact_id(copies.artifact_id);
  question.set_nonce(NewUuid());
  absl::BitGen random;
  const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(kRangeBytes, copies.image_bytes));
  for (int i = 0; i < kRanges; ++i) {
    v1::ProveRequest::Range& range = *question.add_ranges();
    range.set_offset(absl::Uniform<uint64_t>(absl::IntervalClosed, random, 0, copies.image_bytes - bytes));
    range.set_bytes(bytes);
  }
  return question;
}

absl::StatusOr<std::string> Ask(const RequestContext& context, v1::ProveRequest question,
                                const CopyToProve& copy,
                                const std::shared_ptr<const rpc::Credentials>& credentials) {
  question.set_replica_id(copy.replica.replica_id);
  if (copy.origin.has_value()) *question.mutable_origin() = rpc::ToProto(*copy.origin);
  TC_ASSIGN_OR_RETURN(v1::ProveResponse answer,
                      rpc::CallUnary(*StubOf(copy, credentials), &Stub::Prove, context, question, Once()));
  return std::move(*answer.mutable_digest());
}

}  // namespace

Proofs ProveCopies(const RequestContext& context, const CopiesToProve& copies,
                   const std::shared_ptr<const rpc::Credentials>& credentials) {
  RequestContext call = context.Child();
  call.deadline = std::min(context.deadline, SteadyNow() + kProofTimeout);
  // The evicting node's own bytes are the measure: the store has none.
  const v1::ProveRequest question = MakeQuestion(copies);
  absl::StatusOr<std::string> own = absl::UnknownError("not asked");
  std::vector<absl::StatusOr<std::string>> answers(copies.copies.size(), own);
  std::vector<std::thread> askers;
  for (size_t i = 0; i < copies.copies.size(); ++i) {
    askers.emplace_back([&, i] { answers[i] = Ask(call, question, copies.copies[i], credentials); });
  }
  own = Ask(call, question, copies.evicting, credentials);
  for (std::thread& asker : askers) asker.join();
  Proofs proofs;
  for (size_t i = 0; i < copies.copies.size(); ++i) {
    const CopyToProve& copy = copies.copies[i];
    const bool proven = own.ok() && answers[i].ok() && !own->empty() && *own == *answers[i];
    // A copy that does not answer counts as unproven: an eviction may wait, a last copy may not go.
    (proven ? proofs.proven : proofs.unproven).push_back(copy.replica);
    LOG_IF(WARNING, !proven) << "node " << copy.node_name << " says that it has a copy of "
                             << copies.artifact_id << ", and did not prove it: "
                             << (!own.ok()         ? own.status()
                                 : answers[i].ok() ? absl::DataLossError("its bytes differ")
                                                   : answers[i].status());
  }
  return proofs;
}

absl::StatusOr<bool> AskToDigest(const RequestContext& context, const CopyToProve& accused,
                                 const std::shared_ptr<const rpc::Credentials>& credentials) {
  v1::DigestAgainRequest request;
  request.set_replica_id(accused.replica.replica_id);
  TC_ASSIGN_OR_RETURN(const v1::DigestAgainResponse answer,
                      rpc::CallUnary(*StubOf(accused, credentials), &Stub::DigestAgain, context, request));
  return answer.matches();
}

}  // namespace tensorcast::global_store
