#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "global_store/rollouts/rollout_analysis.h"
#include "global_store/service/handlers.h"
#include "rpc/convert/convert.h"

namespace tensorcast::global_store {
namespace {

constexpr uint32_t kSlowest = 10;
constexpr uint32_t kMaxSlowest = 100;
// Of a tree that is deeper the receivers nearest to the end are told: a message must have room for them.
constexpr size_t kMaxPath = 1000;

// What the directory knows of a rollout at a moment.
struct Remembered {
  std::string artifact_id;
  uint64_t key_revision = 0;
  absl::Time bound;
  std::vector<RolloutHop> hops;
  SteadyTime begin;  // of the log
  uint64_t forgotten = 0;
  SteadyTime now;
};

absl::StatusOr<Remembered> Remember(const Directory& directory, const v1::ExplainRolloutRequest& request,
                                    SteadyTime now) {
  Remembered remembered;
  remembered.now = now;
  if (request.has_key()) {
    TC_ASSIGN_OR_RETURN(const KeyRecord key, directory.catalog().ResolveKey(request.key()));
    remembered.artifact_id = key.artifact_id;
    remembered.key_revision = key.revision;
    remembered.bound = key.updated;
  } else {
    TC_ASSIGN_OR_RETURN(const Catalog::Artifact* artifact, directory.catalog().Get(request.artifact_id()));
    remembered.artifact_id = request.artifact_id();
    remembered.bound = artifact->record.created;
  }
  // The copy shares the names of the nodes with the log, so it is made quickly.
  remembered.hops = directory.rollouts().HopsOf(remembered.artifact_id);
  remembered.begin = directory.rollouts().begin();
  remembered.forgotten = directory.rollouts().forgotten();
  return remembered;
}

// Steady times of the directory as wall time.
class WallClock {
 public:
  WallClock(SteadyTime now, absl::Time wall_now) : now_(now), wall_now_(wall_now) {}
  absl::Time ToWall(SteadyTime time) const { return wall_now_ - (now_ - time); }
  SteadyTime ToSteady(absl::Time time) const { return now_ - (wall_now_ - time); }
  google::protobuf::Timestamp ToProto(SteadyTime time) const { return rpc::ToProto(ToWall(time)); }

 private:
  const SteadyTime now_;
  const absl::Time wall_now_;
};

v1::RolloutHop ToProto(const RolloutHop& hop, const WallClock& clock) {
  v1::RolloutHop message;
  message.set_node_id(hop.receiver->id);
  message.set_node_name(hop.receiver->name);
  if (hop.source != nullptr) {
    message.set_source_node_id(hop.source->id);
    message.set_source_name(hop.source->name);
  }
  message.set_lane(hop.lane);
  message.set_bytes(hop.bytes);
  *message.mutable_begun() = clock.ToProto(hop.begun);
  if (hop.HasEnded()) *message.mutable_ended() = clock.ToProto(hop.ended);
  message.set_transfer_id(hop.transfer_id);
  message.set_failed(hop.failed);
  return message;
}

std::string LeftOut(const Remembered& remembered, const WallClock& clock, size_t path) {
  std::vector<std::string> left_out;
  if (clock.ToWall(remembered.begin) > remembered.bound) {
    left_out.push_back(absl::StrCat(
        "transfers before the global store started at ",
        absl::FormatTime(absl::RFC3339_sec, clock.ToWall(remembered.begin), absl::UTCTimeZone())));
  }
  if (remembered.forgotten > 0) {
    left_out.push_back(absl::StrCat("some of the ", remembered.forgotten,
                                    " transfers that the global store dropped to limit its memory"));
  }
  if (path > kMaxPath) left_out.push_back(absl::StrCat("the first ", path - kMaxPath, " hops of the path"));
  return absl::StrJoin(left_out, "; ");
}

// Of receivers that are alive: where they are.
void Locate(const Membership& membership, google::protobuf::RepeatedPtrField<v1::RolloutHop>* hops) {
  for (v1::RolloutHop& hop : *hops) {
    const Node* node = membership.Find(hop.node_id());
    if (node == nullptr) continue;
    hop.set_grpc_address(node->facts.grpc_address);
    hop.mutable_labels()->insert(node->facts.labels.begin(), node->facts.labels.end());
  }
}

}  // namespace

// The directory is locked for a copy of the hops, and for the addresses at the end, not for the analysis.
absl::StatusOr<v1::ExplainRolloutResponse> Handlers::ExplainRollout(
    const RequestContext&, const v1::ExplainRolloutRequest& request) {
  if (request.artifact_case() == v1::ExplainRolloutRequest::ARTIFACT_NOT_SET) {
    return absl::InvalidArgumentError(
        "explain a rollout: no artifact was named; name an artifact id or a key");
  }
  if (request.slowest() > kMaxSlowest) {
    return absl::InvalidArgumentError(absl::StrCat("explain a rollout: the call asks for the ",
                                                   request.slowest(), " slowest nodes; ask for at most ",
                                                   kMaxSlowest));
  }
  TC_ASSIGN_OR_RETURN(Remembered remembered,
                      coordinator_.WithDirectory([&](const Directory& directory, SteadyTime now) {
                        return Remember(directory, request, now);
                      }));
  const WallClock clock(remembered.now, coordinator_.wall_now());
  if (request.has_since()) {
    const SteadyTime since = clock.ToSteady(rpc::FromProto(request.since()));
    std::erase_if(remembered.hops, [&](const RolloutHop& hop) { return hop.begun < since; });
  }
  const std::vector<RolloutHop>& hops = remembered.hops;
  const RolloutAnalysis analysis =
      AnalyzeRollout(hops, request.slowest() == 0 ? kSlowest : request.slowest(), remembered.now);
  v1::ExplainRolloutResponse response;
  response.set_artifact_id(remembered.artifact_id);
  response.set_key_revision(remembered.key_revision);
  *response.mutable_bound() = rpc::ToProto(remembered.bound);
  response.set_receivers(static_cast<uint32_t>(hops.size()));
  response.set_ended(analysis.ended);
  response.set_failed(analysis.failed);
  for (const RolloutLevel& level : analysis.levels) {
    if (response.levels_size() == static_cast<int>(kMaxPath)) break;
    v1::RolloutLevel& added = *response.add_levels();
    added.set_receivers(level.receivers);
    added.set_ended(level.ended);
    *added.mutable_first_begun() = clock.ToProto(level.first_begun);
    if (level.ended > 0) *added.mutable_last_ended() = clock.ToProto(level.last_ended);
  }
  const std::vector<size_t>& path = analysis.critical_path;
  for (size_t i = path.size() - std::min(path.size(), kMaxPath); i < path.size(); ++i) {
    *response.add_critical_path() = ToProto(hops[path[i]], clock);
  }
  for (const size_t slow : analysis.slowest) *response.add_slowest() = ToProto(hops[slow], clock);
  google::protobuf::RepeatedPtrField<v1::RolloutHop> worst;
  if (analysis.worst_hop.has_value()) {
    *worst.Add() = ToProto(hops[*analysis.worst_hop], clock);
    *response.mutable_worst_hop_costs() = rpc::ToProto(analysis.worst_hop_costs);
  }
  coordinator_.WithDirectory([&](const Directory& directory, SteadyTime) {
    Locate(directory.membership(), response.mutable_critical_path());
    Locate(directory.membership(), response.mutable_slowest());
    Locate(directory.membership(), &worst);
    return true;
  });
  if (!worst.empty()) *response.mutable_worst_hop() = std::move(worst[0]);
  response.set_left_out(LeftOut(remembered, clock, path.size()));
  return response;
}

}  // namespace tensorcast::global_store
