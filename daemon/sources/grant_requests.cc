#include "daemon/sources/grant_requests.h"

#include <algorithm>

#include "base/ids.h"
#include "base/steady_time.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon {
namespace {

constexpr absl::Duration kCheckInTimeout = absl::Seconds(5);

// A source that delivered nothing is asked again so many times in a row. One that is alive and gives no byte
// for the whole of its time may be busy with others: it is asked for longer.
constexpr int kTriesOfAFailing = 3;
constexpr int kTriesOfABusy = 20;

}  // namespace

// Given up for this transfer: the global store is asked to leave the replica out.
bool GrantRequests::Tried::given_up() const {
  return corrupt || fruitless >= (busy ? kTriesOfABusy : kTriesOfAFailing);
}

void GrantRequests::NoteFailure(const std::string& replica_name, const SourceFailure& failure) {
  Tried& replica = replicas_[replica_name];
  if (failure.delivered > 0) replica.fruitless = 0;
  replica.corrupt = failure.corrupt;
  if (!failure.corrupt) NoteFruitless(replica_name, failure.status);
}

void GrantRequests::NoteFruitless(const std::string& replica_name, const absl::Status& status) {
  Tried& replica = replicas_[replica_name];
  ++replica.fruitless;
  replica.busy = absl::IsDeadlineExceeded(status) || absl::IsResourceExhausted(status);
}

void GrantRequests::NoteOriginFailed(const std::string& uri) {
  if (held_origin_ == uri) held_origin_.clear();
  failed_origins_.push_back(uri);
}

int GrantRequests::Fruitless(const std::string& replica_name) const {
  const auto tried = replicas_.find(replica_name);
  return tried == replicas_.end() ? 0 : tried->second.fruitless;
}

// The request tells the global store what this transfer knows: the replicas to leave out, those to offer last
// (slow), those with wrong bytes, the grants that are held, and the origins that failed.
absl::StatusOr<v1::RequestReplicaTransportResponse> GrantRequests::Ask(const RequestContext& context,
                                                                       bool again, uint32_t beside_stalled) {
  v1::RequestReplicaTransportRequest request = wanted_;
  *request.mutable_node() = parts_.link->identity();
  for (const auto& [replica_name, tried] : replicas_) {
    // One that is held again is slow only where it gives nothing now.
    if (held_->Holds(replica_name)) continue;
    const bool excluded = tried.given_up() || (!again && (tried.fruitless > 0 || tried.rests));
    (excluded ? request.add_excluded_replicas() : request.add_slow_replicas())->assign(replica_name);
    if (tried.corrupt) request.add_corrupt_replicas(replica_name);
  }
  if (context.deadline != SteadyTime::InfiniteFuture()) {
    *request.mutable_timeout() = rpc::ToProto(TimeLeft(context.deadline));
  }
  for (const auto& [grant_id, held] : held_->all()) {
    request.add_held_grants(grant_id);
    if (beside_stalled > 0) request.add_slow_replicas(held.replica_name());
  }
  request.set_received_mbit(rate_.MbitOf(received_bytes_, SteadyNow()));
  request.set_held_origin(held_origin_);
  request.mutable_failed_origins()->Assign(failed_origins_.begin(), failed_origins_.end());
  // Beside sources that give nothing, more grants than usual may be held: those that stall are not given back
  // yet.
  const size_t beside = beside_stalled > 0 ? held_->all().size() + beside_stalled : 0;
  const size_t enough = wanted_.sources() > 0 ? wanted_.sources() : kMaxSources;
  request.set_sources(static_cast<uint32_t>(std::max(enough, beside)));
  absl::StatusOr<v1::RequestReplicaTransportResponse> answer = Request(context, request);
  if (absl::IsNotFound(answer.status()) || absl::IsAborted(answer.status())) {
    // The artifact is unknown, or this node is: the global store may have been restarted since the last
    // heartbeat.
    const absl::Status known =
        parts_.link->CheckIn(std::min(context.deadline, SteadyNow() + kCheckInTimeout));
    answer = known.ok() ? Request(context, request) : known;
  }
  if (answer.ok() && (answer->grants_size() > 0 || answer->has_origin_to_read())) rate_.Begin(SteadyNow());
  return answer;
}

// Each grant is a mutation of its own, though all are asked for on behalf of one request.
absl::StatusOr<v1::RequestReplicaTransportResponse> GrantRequests::Request(
    const RequestContext& context, const v1::RequestReplicaTransportRequest& request) const {
  RequestContext call = context.Child();
  call.request_id = NewUuid();
  return parts_.global_store->RequestReplicaTransport(call, request);
}

}  // namespace tensorcast::daemon
