#include "tools/workshop/bench/fleet_follower.h"

#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/artifact/layout.h"
#include "core/replica/inventory_digest.h"
#include "rpc/convert/convert.h"
#include "rpc/retry_after.h"
#include "tools/workshop/bench/flight.h"

namespace tensorcast::bench {
namespace {

// As a daemon's (daemon/sources, daemon/service/difference_paths.cc).
constexpr uint64_t kSmallDifference = uint64_t{32} << 20;
constexpr uint32_t kMaxSources = 6;
constexpr size_t kMaxBases = 15;
constexpr absl::Duration kRetry = absl::Milliseconds(250);
constexpr absl::Duration kToFindSource = absl::Seconds(19);

uint64_t DigestOf(const std::string& replica_id) {
  return InventoryDigestOf(ReplicaInfo{.id = replica_id, .state = ReplicaState::kReady});
}

}  // namespace

FleetFollower::FleetFollower(const Options& options, std::string node_id, const Observer* observer)
    : options_(options), node_id_(std::move(node_id)), observer_(*observer) {}

void FleetFollower::SetInventory(const std::string& artifact_id, const std::string& replica_id) {
  images_ = {artifact_id};
  digest_ = DigestOf(replica_id);
}

void FleetFollower::Go(Phase phase, absl::Duration in) {
  phase_ = phase;
  due_ = phase == Phase::kIdle ? SteadyTime::InfiniteFuture() : SteadyNow() + in;
}

std::string FleetFollower::NewReplicaId() {
  // As long as a daemon's, which are UUIDs.
  return absl::StrCat("00000000-0000-4000-", absl::Dec(replica_ids_++, absl::kZeroPad4), "-",
                      absl::Hex(std::hash<std::string>()(node_id_) & 0xffffffffffff, absl::kZeroPad12));
}

v1::NodeIdentity FleetFollower::Identity() const {
  v1::NodeIdentity identity;
  identity.set_node_id(node_id_);
  identity.set_incarnation(1);
  return identity;
}

void FleetFollower::Report(v1::HeartbeatRequest* heartbeat) {
  heartbeat->set_inventory_sequence(sequence_);
  // A daemon with changes that it has not reported yet leaves it out.
  if (phase_ == Phase::kIdle) heartbeat->set_inventory_digest(digest_);
  for (const std::string& grant : grants_) heartbeat->add_active_grants(grant);
  if (task_id_.empty()) return;
  v1::ReplicationTaskReport& report = *heartbeat->add_tasks();
  report.set_task_id(task_id_);
  report.set_bytes(ended_ ? target_.bytes : 0);
  report.set_bytes_total(target_.bytes);
  report.set_ended(ended_);
  told_ = ended_;
}

void FleetFollower::Answered(const v1::HeartbeatResponse& response) {
  if (std::exchange(told_, false)) task_id_.clear();
  const auto& tasks = response.tasks();
  const auto is_current = [this](const v1::ReplicationTask& task) { return task.task_id() == task_id_; };
  if (std::ranges::any_of(tasks, is_current)) return;
  if (!task_id_.empty() && !ended_) {  // a newer version overtook it
    task_id_.clear();
    grants_.clear();
    Go(Phase::kIdle);
  }
  if (task_id_.empty() && !tasks.empty()) Begin(tasks[0]);
}

void FleetFollower::Begin(const v1::ReplicationTask& task) {
  task_id_ = task.task_id();
  ended_ = false;
  target_ = {.artifact_id = task.artifact_id(), .replica_id = NewReplicaId()};
  Go(Phase::kDescribe);
}

void FleetFollower::Step(Stub* stub, Done done) {
  switch (phase_) {
    case Phase::kIdle:
      return done(absl::OkStatus());
    case Phase::kDescribe:
      return Describe(stub, std::move(done));
    case Phase::kRequest:
      return Request(stub, std::move(done));
    case Phase::kComplete:
      return Complete(stub, std::move(done));
    case Phase::kReport:
      return ReportReplicas(stub, std::move(done));
  }
}

void FleetFollower::Describe(Stub* stub, Done done) {
  struct Reactor : grpc::ClientReadReactor<v1::DescribeArtifactResponse> {
    Reactor(FleetFollower* follower, Done done) : follower(follower), done(std::move(done)) {}
    void OnReadDone(bool ok) override {
      if (!ok) return;
      if (flight.response.has_artifact()) image_bytes = flight.response.artifact().image_bytes();
      for (const v1::Difference& difference : flight.response.differences()) {
        parts.push_back({.artifact_id = difference.artifact_id(),
                         .bytes = difference.image_bytes(),
                         .is_difference = true});
      }
      StartRead(&flight.response);
    }
    void OnDone(const grpc::Status& status) override {
      const absl::Status outcome = flight.call.Outcome(status);
      if (outcome.ok()) {
        follower->target_.bytes = image_bytes;
        follower->OnDescribed(std::move(parts));
      }
      done(outcome);
      delete this;
    }
    FleetFollower* const follower;
    const Done done;
    Flight<v1::DescribeArtifactRequest, v1::DescribeArtifactResponse> flight;
    std::vector<Part> parts;
    uint64_t image_bytes = 0;
  };
  observer_.on_call("DescribeArtifact");
  auto* const reactor = new Reactor(this, std::move(done));  // until OnDone
  v1::DescribeArtifactRequest& request = reactor->flight.request;
  request.set_artifact_id(target_.artifact_id);
  request.set_manifest(true);
  for (size_t i = 0; i < std::min(images_.size(), kMaxBases); ++i) {
    request.add_held_artifacts(images_[images_.size() - 1 - i]);
  }
  stub->async()->DescribeArtifact(reactor->flight.call.get(), &request, reactor);
  reactor->StartRead(&reactor->flight.response);
  reactor->StartCall();
}

void FleetFollower::OnDescribed(std::vector<Part> parts) {
  parts_ = std::move(parts);
  if (parts_.empty()) {
    parts_ = {target_};
  } else {
    for (Part& part : parts_) part.replica_id = NewReplicaId();
  }
  part_ = 0;
  Go(Phase::kRequest);
}

void FleetFollower::Request(Stub* stub, Done done) {
  observer_.on_call("RequestReplicaTransport");
  const Part& part = parts_[part_];
  auto flight =
      std::make_shared<Flight<v1::RequestReplicaTransportRequest, v1::RequestReplicaTransportResponse>>();
  v1::RequestReplicaTransportRequest& request = flight->request;
  *request.mutable_node() = Identity();
  request.set_artifact_id(part.artifact_id);
  request.mutable_destination()->set_kind(v1::LOCATION_KIND_CPU);
  request.set_fills(part.replica_id);
  *request.mutable_timeout() = rpc::ToProto(kToFindSource);
  request.set_sources(part.is_difference && part.bytes <= kSmallDifference ? 1 : kMaxSources);
  stub->async()->RequestReplicaTransport(
      flight->call.get(), &request, &flight->response,
      [this, flight, done = std::move(done)](const grpc::Status& status) {
        const absl::Status outcome = flight->call.Outcome(status);
        const v1::RequestReplicaTransportResponse& response = flight->response;
        if (outcome.ok() && response.grants_size() > 0) {
          for (const v1::TransportGrant& grant : response.grants()) grants_.push_back(grant.grant_id());
          Go(Phase::kComplete, options_.transfer);
        } else if (outcome.ok()) {
          Go(Phase::kRequest, response.has_retry_after() ? rpc::FromProto(response.retry_after()) : kRetry);
        }
        done(outcome);
      });
}

void FleetFollower::Complete(Stub* stub, Done done) {
  observer_.on_call("CompleteReplicaTransport");
  auto flight =
      std::make_shared<Flight<v1::CompleteReplicaTransportRequest, v1::CompleteReplicaTransportResponse>>();
  v1::CompleteReplicaTransportRequest& request = flight->request;
  *request.mutable_node() = Identity();
  request.set_grant_id(grants_.back());
  request.set_outcome(v1::TRANSPORT_OUTCOME_SUCCEEDED);
  request.set_bytes(parts_[part_].bytes / grants_.size());
  request.set_transfer_id(parts_[part_].replica_id);  // a UUID, too
  stub->async()->CompleteReplicaTransport(
      flight->call.get(), &request, &flight->response,
      [this, flight, done = std::move(done)](const grpc::Status& status) {
        const absl::Status outcome = flight->call.Outcome(status);
        if (outcome.ok()) {
          if (!grants_.empty()) grants_.pop_back();
          if (!grants_.empty()) {
            Go(Phase::kComplete);
          } else if (++part_ < parts_.size()) {
            Go(Phase::kRequest);
          } else {
            Go(Phase::kReport, parts_.front().is_difference ? options_.rebuild : absl::ZeroDuration());
          }
        }
        done(outcome);
      });
}

v1::Replica FleetFollower::Ready(const Part& part) const {
  const uint32_t chunks = ChunkCountOf(part.bytes, ChunkBytesOf(part.bytes));
  v1::Replica replica;
  replica.set_replica_id(part.replica_id);
  replica.set_artifact_id(part.artifact_id);
  replica.set_node_id(node_id_);
  replica.mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
  replica.set_state(v1::REPLICA_STATE_READY);
  replica.set_image_bytes(part.bytes);
  replica.set_chunks_total(chunks);
  replica.set_chunks_present(chunks);
  return replica;
}

void FleetFollower::ReportReplicas(Stub* stub, Done done) {
  observer_.on_call("UpdateReplicas");
  auto flight = std::make_shared<Flight<v1::UpdateReplicasRequest, v1::UpdateReplicasResponse>>();
  v1::UpdateReplicasRequest& request = flight->request;
  *request.mutable_node() = Identity();
  request.set_sequence(sequence_ + 1);
  for (const Part& part : parts_) {
    if (part.is_difference) *request.add_replicas() = Ready(part);
  }
  *request.add_replicas() = Ready(target_);
  stub->async()->UpdateReplicas(flight->call.get(), &request, &flight->response,
                                [this, flight, done = std::move(done)](const grpc::Status& status) {
                                  const absl::Status outcome = flight->call.Outcome(status);
                                  if (outcome.ok()) OnReported();
                                  done(outcome);
                                });
}

void FleetFollower::OnReported() {
  ++sequence_;
  for (const Part& part : parts_) {
    if (part.is_difference) digest_ += DigestOf(part.replica_id);
  }
  digest_ += DigestOf(target_.replica_id);
  images_.push_back(target_.artifact_id);
  ended_ = true;
  Go(Phase::kIdle);
  observer_.on_ready(target_.artifact_id);
}

}  // namespace tensorcast::bench
