// Code that `tensorcast replicate` (makes tasks) and `tensorcast replication` (shows and cancels them) share:
// places on their command lines, and the text of a task.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "cli/commands/command.h"
#include "client/admin.h"
#include "client/versions.h"
#include "proto/global_store.pb.h"

namespace tensorcast::cli {

using ReplicationTarget = v1::ReplicateArtifactRequest::Target;
using ReplicationTargets = google::protobuf::RepeatedPtrField<ReplicationTarget>;

// The location on the command line that stands for all GPUs of a node.
inline constexpr std::string_view kAllGpus = "gpu:all";

struct PlaceFlags {
  std::string artifact;         // a key or an id
  std::vector<std::string> to;  // NODE or NODE:LOCATION, separated by commas
  std::string device = "cpu";   // the location for entries of `to` that have none
};
void AddPlaceFlags(Flags& flags, PlaceFlags& values);

// Adds the location on that node; for gpu:all, adds each of its GPUs.
absl::Status AddPlaces(const v1::GetClusterStatusResponse& cluster, const std::string& node,
                       const std::string& location, ReplicationTargets* targets);
// Adds the places that --to names.
absl::Status AddNamed(const v1::GetClusterStatusResponse& cluster, const PlaceFlags& flags,
                      ReplicationTargets* targets);

// Returns the artifact's id. `artifact` is an id or a key; the global store must confirm a key.
absl::StatusOr<std::string> ConfirmedArtifactId(client::AdminClient& admin, const RequestContext& context,
                                                const std::string& artifact);

// Converts targets for the calls about followers.
absl::StatusOr<client::VersionsClient::Targets> FollowTargets(const ReplicationTargets& targets);
absl::StatusOr<std::unique_ptr<client::VersionsClient>> ConnectVersions(const CommonFlags& common);

std::string PlaceText(const v1::Follower& follower);     // "node-1:gpu:0"
std::string StateText(const v1::Follower& follower);     // "at revision 7", "under way", "waits for ..."
std::string PlaceText(const v1::ReplicationTask& task);  // "node-1:gpu:0"
std::string StateText(const v1::ReplicationTask& task);  // "done", "1.2 GiB of 4.0 GiB", "waits for ..."
std::string ErrorText(const v1::ReplicationTask& task);  // empty: none

}  // namespace tensorcast::cli
