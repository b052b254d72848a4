#include <algorithm>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "global_store/service/convert.h"
#include "global_store/service/daemon_calls.h"
#include "global_store/service/handlers.h"
#include "otel/api/metrics_catalogue.h"
#include "rpc/convert/convert.h"
#include "rpc/grant_token/grant_token.h"

// Requests for sources and the ends of grants. A request may depend on the files of an import: their node is
// asked about them, or is made to read them, while no lock is held.
namespace tensorcast::global_store {
namespace {

// A reading makes a whole replica from files, which may take as long as an import.
constexpr absl::Duration kLongestReading = absl::Minutes(30);
constexpr int kMaxOriginsAsked = 4;  // on behalf of one call, each for seconds at most

// A source that failed by DEADLINE_EXCEEDED was asked and gave nothing in time.
absl::StatusOr<GrantEnd> EndOf(const v1::CompleteReplicaTransportRequest& request) {
  switch (request.outcome()) {
    case v1::TRANSPORT_OUTCOME_SUCCEEDED:
      return GrantEnd::kSucceeded;
    case v1::TRANSPORT_OUTCOME_FAILED:
      return absl::IsDeadlineExceeded(rpc::FromProto(request.error())) ? GrantEnd::kOvertaken
                                                                       : GrantEnd::kFailed;
    case v1::TRANSPORT_OUTCOME_CANCELLED:
      return GrantEnd::kCancelled;
    default:
      return absl::InvalidArgumentError(
          "complete a transfer: no outcome was named; name succeeded, failed or cancelled");
  }
}

// `receiver` is its node's name, `epoch` this global store's.
v1::TransportGrant ToProto(const OfferedGrant& granted, std::string receiver, uint64_t epoch) {
  const Grant& grant = granted.grant;
  v1::TransportGrant message;
  message.set_grant_id(grant.grant_id);
  *message.mutable_source() = global_store::ToProto(granted.source);
  *message.mutable_replica() = rpc::ToProto(granted.replica);
  message.set_lane(grant.lane);
  message.set_share(granted.share);
  message.set_shares(granted.shares);
  *message.mutable_ttl() = rpc::ToProto(granted.ttl);
  message.set_token(rpc::SignGrant(granted.source_key, {.grant_id = grant.grant_id,
                                                        .replica_id = grant.replica_id,
                                                        .artifact_id = grant.artifact_id,
                                                        .receiver_node_id = grant.receiver_node,
                                                        .lane = grant.lane,
                                                        .expires = grant.token_expires,
                                                        .receiver_name = std::move(receiver),
                                                        .source_name = granted.source.facts.name,
                                                        .epoch = epoch}));
  return message;
}

}  // namespace

absl::StatusOr<v1::RequestReplicaTransportResponse> Handlers::RequestReplicaTransport(
    const RequestContext& context, const v1::RequestReplicaTransportRequest& request) {
  TC_ASSIGN_OR_RETURN(const Location destination, rpc::FromProto(request.destination()));
  // A receiver that names no number of sources wants one beside those that it holds.
  const GrantRequest wanted{
      .receiver = FromProto(request.node()),
      .artifact_id = request.artifact_id(),
      .destination = destination,
      .excluded_replicas = {request.excluded_replicas().begin(), request.excluded_replicas().end()},
      .corrupt_replicas = {request.corrupt_replicas().begin(), request.corrupt_replicas().end()},
      .slow_replicas = {request.slow_replicas().begin(), request.slow_replicas().end()},
      .timeout = rpc::FromProto(request.timeout()),
      .required_lane = request.required_lane(),
      .sources = request.sources() > 0 ? request.sources() : request.held_grants_size() + 1u,
      .received_mbit = request.received_mbit(),
      .held_grants = {request.held_grants().begin(), request.held_grants().end()},
      .held_origin = request.held_origin(),
      .failed_origins = {request.failed_origins().begin(), request.failed_origins().end()},
      .fills = request.fills()};
  // A repeated request gets the grants that were given under this key while they live.
  const std::string key =
      RequestKey(context.request_id, "RequestReplicaTransport", request.SerializeAsString());
  // The time includes the questions to nodes about origins.
  const SteadyTime asked = SteadyNow();
  TC_ASSIGN_OR_RETURN(const GrantOffer offer, RequestGrant(context, key, wanted));
  if (!wanted.corrupt_replicas.empty()) DigestAccused();
  otel::metrics::kGlobalSelectionWaitSeconds.Record(absl::ToDoubleSeconds(SteadyNow() - asked),
                                                    {!offer.granted.empty() || offer.shared     ? "granted"
                                                     : offer.retry_after > absl::ZeroDuration() ? "wait"
                                                                                                : "refused"});
  v1::RequestReplicaTransportResponse response;
  // The name goes into the tokens: the source checks it against the certificate of the connection.
  if (!offer.granted.empty()) {
    TC_ASSIGN_OR_RETURN(
        const std::string receiver,
        coordinator_.WithDirectory([&](Directory& directory, SteadyTime) -> absl::StatusOr<std::string> {
          TC_ASSIGN_OR_RETURN(const Node* node, directory.membership().FindLive(wanted.receiver));
          return node->facts.name;
        }));
    for (const OfferedGrant& granted : offer.granted) {
      *response.add_grants() = ToProto(granted, receiver, coordinator_.epoch());
    }
  }
  if (offer.look_again < absl::InfiniteDuration()) {
    *response.mutable_look_again() = rpc::ToProto(offer.look_again);
  }
  for (const Origin& origin : offer.origins) *response.add_origins() = rpc::ToProto(origin);
  if (offer.shared.has_value()) {
    *response.mutable_origin_to_read() = rpc::ToProto(offer.shared->origin);
    response.set_origin_share(offer.shared->share);
    response.set_origin_shares(offer.shared->shares);
  }
  response.set_no_source_reason(offer.no_source_reason);
  response.mutable_waiting_for()->Assign(offer.waiting_for.begin(), offer.waiting_for.end());
  if (offer.retry_after > absl::ZeroDuration()) {
    *response.mutable_retry_after() = rpc::ToProto(offer.retry_after);
  }
  return response;
}

absl::StatusOr<GrantOffer> Handlers::RequestGrant(const RequestContext& context, const std::string& key,
                                                  const GrantRequest& wanted) {
  TC_ASSIGN_OR_RETURN(GrantOffer offer, coordinator_.RequestGrant(key, wanted));
  // The directory says what has to be known before it can answer; nodes are asked with no lock held, what
  // they say is noted, and the directory is asked anew. It names a finding once, so each round comes further.
  for (int asked = 0; asked < kMaxOriginsAsked; ++asked) {
    if (offer.origin_to_check.has_value()) {
      CheckOrigins(context, {*offer.origin_to_check});
    } else if (offer.origin_to_read.has_value()) {
      // Its importer is asked to read a shared origin without a question: it tells what came of it.
      if (IsShared(offer.origin_to_read->origin) || CheckOrigins(context, {*offer.origin_to_read})) {
        // No answer is waited for here: reading takes minutes, and the caller asks again.
        StartReading(context, *offer.origin_to_read);
        return offer;
      }
      NoteReading(
          *offer.origin_to_read,
          absl::UnavailableError("read the origin: the node of the origin does not answer, or no "
                                 "longer has the files; start that node, or import the artifact again"));
    } else {
      return offer;
    }
    TC_RETURN_IF_ERROR(context.Check(absl::StrCat("find a source of ", wanted.artifact_id)));
    TC_ASSIGN_OR_RETURN(offer, coordinator_.RequestGrant(key, wanted));
  }
  // The directory already counts this reading as under way, so it has to begin.
  if (offer.origin_to_read.has_value()) StartReading(context, *offer.origin_to_read);
  return offer;
}

void Handlers::NoteReading(const OriginToCheck& origin, const absl::Status& read) {
  coordinator_.WithDirectory([&](Directory& directory, SteadyTime now) {
    directory.transfers().NoteReading(origin, read, now);
    return true;
  });
}

void Handlers::StartReading(const RequestContext& context, const OriginToCheck& origin) {
  RequestContext reading = RequestContext::Background(kLongestReading);
  reading.trace = context.trace;
  // Not the caller's: others wait for the same reading, and the caller asks again by another call.
  reading.cancellation = cancel_readings_;
  const absl::Status started =
      readings_.Schedule([this, reading, origin] { NoteReading(origin, ReadOrigin(reading, origin)); });
  if (!started.ok()) NoteReading(origin, started);
}

absl::Status Handlers::ReadOrigin(const RequestContext& context, const OriginToCheck& origin) {
  LOG(INFO) << "ask node " << origin.origin.node_id << " to read " << origin.artifact_id
            << " from the files that the node imported, since no other node has a replica";
  const absl::Status read =
      AskToMaterialize(context, origin.artifact_id, origin.grpc_address, options_.credentials);
  if (read.ok()) return read;
  LOG(WARNING) << "node " << origin.origin.node_id << " could not read " << origin.artifact_id
               << " from the files that it imported: " << read;
  // Files of the right size and time that give other bytes, or none, are as good as gone. Of other failures
  // (the node has just been registered anew, say) nothing follows for good: it is looked at before it is read
  // again.
  if (absl::IsDataLoss(read)) {
    coordinator_.WithDirectory([&](Directory& directory, SteadyTime now) {
      directory.NoteOrigin(origin.artifact_id, origin.origin, OriginFinding::kGone, read.message(), now);
      return true;
    });
  }
  return read;
}

absl::StatusOr<v1::CompleteReplicaTransportResponse> Handlers::CompleteReplicaTransport(
    const RequestContext&, const v1::CompleteReplicaTransportRequest& request) {
  TC_ASSIGN_OR_RETURN(const GrantEnd end, EndOf(request));
  LOG_IF(INFO, request.has_error()) << "grant " << request.grant_id() << " ended at node "
                                    << request.node().node_id() << ": " << rpc::FromProto(request.error());
  TC_RETURN_IF_ERROR(coordinator_.WithDirectory([&](Directory& directory, SteadyTime now) {
    return directory.transfers().CompleteGrant(
        FromProto(request.node()), request.grant_id(), end, request.source_corrupt(), now,
        {.bytes = request.bytes(), .transfer_id = request.transfer_id()});
  }));
  if (request.source_corrupt()) DigestAccused();
  return v1::CompleteReplicaTransportResponse();
}

}  // namespace tensorcast::global_store
