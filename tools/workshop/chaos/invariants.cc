#include "tools/workshop/chaos/invariants.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "rpc/convert/convert.h"
#include "tools/workshop/model/compare.h"

namespace tensorcast::chaos {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(20);
// Connections between processes that were restarted, and gRPC's and UCX's own threads, come and go. A leak
// shows all the same: it grows with the faults.
constexpr int kFootprintSlack = 12;

RequestContext Until(SteadyTime deadline) { return RequestContext::Background(deadline - SteadyNow()); }

absl::Status ExpectZero(uint64_t value, std::string_view what) {
  if (value == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(value, " ", what, " left"));
}

// core/difference/FORMAT.md; no model has such tensors.
bool IsDifference(const client::Replica& replica) {
  const auto& tensors = replica.tensors();
  return tensors.size() == 2 && replica.Find("index").ok() && replica.Find("records").ok();
}

std::string NodeName(int node) { return absl::StrCat("node-", node); }

}  // namespace

void Invariants::Acknowledge(const std::string& key, const std::string& artifact_id,
                             const std::string& model) {
  acknowledged_[key] = {.artifact_id = artifact_id, .model = model};
}

void Invariants::Forget(const std::string& key) { acknowledged_.erase(key); }

absl::Status Invariants::Await(int node, SteadyTime deadline,
                               const std::function<absl::Status(const v1::GetStatusResponse&)>& condition) {
  absl::Status last = absl::DeadlineExceededError("no status came");
  TC_ASSIGN_OR_RETURN(const auto admin, client::AdminClient::Connect(cluster_.addresses(node).unix_socket));
  // The daemon streams its status, so the condition is looked at as soon as it may hold. The stream ends with
  // the first success, with the deadline, or with the daemon.
  const absl::Status watched = admin->WatchStatus(Until(deadline), kInterval, [&](const auto& status) {
    last = condition(status);
    return !last.ok();
  });
  if (last.ok()) return last;
  return Annotate(last, absl::StrCat(NodeName(node), " (", watched.ToString(), ")"));
}

absl::Status Invariants::AwaitWhole(SteadyTime deadline) {
  for (int node = 0; node < cluster_.daemons(); ++node) {
    TC_ASSIGN_OR_RETURN(const auto admin, client::AdminClient::Connect(cluster_.addresses(node).unix_socket));
    TC_RETURN_IF_ERROR(Await(node, deadline, [&](const v1::GetStatusResponse& status) -> absl::Status {
      if (!status.global_store_reachable()) return absl::UnavailableError("does not reach the global store");
      TC_ASSIGN_OR_RETURN(const auto cluster, admin->GetClusterStatus(Until(deadline)));
      for (const v1::Node& known : cluster.nodes()) {
        if (known.node_id() == status.node().node_id() &&
            known.incarnation() == status.node().incarnation()) {
          return absl::OkStatus();
        }
      }
      return absl::UnavailableError("the global store does not know it yet");
    }));
  }
  return absl::OkStatus();
}

absl::Status Invariants::CheckAcknowledged(SteadyTime deadline) {
  TC_ASSIGN_OR_RETURN(const auto client,
                      client::Client::Connect({.daemon = cluster_.addresses(0).unix_socket}));
  TC_ASSIGN_OR_RETURN(const auto admin, client::AdminClient::Connect(cluster_.addresses(0).unix_socket));
  TC_ASSIGN_OR_RETURN(const auto artifacts,
                      admin->ListArtifacts(Until(deadline), /*unkeyed_only=*/false, absl::ZeroDuration()));
  for (const auto& [key, truth] : acknowledged_) {
    const absl::StatusOr<client::KeyInfo> found = client->ResolveKey(Until(deadline), key);
    TC_RETURN_IF_ERROR(Annotate(found.status(), absl::StrCat("acknowledged key ", key)));
    if (found->unconfirmed) return absl::UnavailableError(absl::StrCat("no leader confirms key ", key));
    if (found->artifact_id != truth.artifact_id) {
      return absl::InternalError(absl::StrCat("acknowledged key ", key, " leads to ", found->artifact_id,
                                              " and not to ", truth.artifact_id));
    }
    const bool listed = std::any_of(artifacts.begin(), artifacts.end(),
                                    [&expected = truth.artifact_id](const v1::Artifact& artifact) {
                                      return artifact.artifact_id() == expected;
                                    });
    if (!listed) return absl::InternalError(absl::StrCat("acknowledged artifact of ", key, " is not listed"));
  }
  return absl::OkStatus();
}

absl::Status Invariants::VerifyReplica(client::Client& client, const v1::Replica& replica,
                                       SteadyTime deadline, const std::string& unacknowledged) {
  std::string model = unacknowledged;
  for (const auto& [key, truth] : acknowledged_) {
    if (truth.artifact_id == replica.artifact_id()) model = truth.model;
  }
  if (model.empty()) {
    return absl::InternalError(absl::StrCat("artifact ", replica.artifact_id(), " is unknown"));
  }
  TC_ASSIGN_OR_RETURN(const Location location, rpc::FromProto(replica.location()));
  // A get at the replica's own location attaches to it. The lane is not named, so a replica that was evicted
  // meanwhile would be made again, and is compared all the same.
  TC_ASSIGN_OR_RETURN(const auto attached,
                      client.Get(Until(deadline), replica.artifact_id(), {.location = location.ToString()}));
  // The bytes of a difference are what is made of them: the next version, which is compared.
  if (IsDifference(*attached)) return absl::OkStatus();
  return CompareReplica(attached->tensors(), model, &devices_).status();
}

absl::Status Invariants::VerifyReplicas(SteadyTime deadline, const std::string& unacknowledged) {
  for (int node = 0; node < cluster_.daemons(); ++node) {
    const std::string& address = cluster_.addresses(node).unix_socket;
    TC_ASSIGN_OR_RETURN(const auto admin, client::AdminClient::Connect(address));
    TC_ASSIGN_OR_RETURN(const auto client,
                        client::Client::Connect({.daemon = address, .devices = &devices_}));
    TC_ASSIGN_OR_RETURN(const auto replicas, admin->ListReplicas(Until(deadline), ""));
    for (const v1::Replica& replica : replicas) {
      if (replica.state() != v1::REPLICA_STATE_READY) continue;
      if (replica.location().kind() == v1::LOCATION_KIND_DISK) continue;
      TC_RETURN_IF_ERROR(Annotate(VerifyReplica(*client, replica, deadline, unacknowledged),
                                  absl::StrCat("a replica of ", NodeName(node))));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, uint64_t>> Invariants::PoolBytes(const v1::GetStatusResponse& status) {
  std::map<std::string, uint64_t> bytes;
  for (const v1::Pool& pool : status.pools()) {
    TC_ASSIGN_OR_RETURN(const Location location, rpc::FromProto(pool.location()));
    bytes[location.ToString()] = pool.used_bytes();
  }
  return bytes;
}

absl::Status Invariants::RecordBaseline(SteadyTime deadline) {
  baselines_.assign(cluster_.daemons(), {});
  for (int node = 0; node < cluster_.daemons(); ++node) {
    TC_RETURN_IF_ERROR(Await(node, deadline, [&](const v1::GetStatusResponse& status) -> absl::Status {
      TC_RETURN_IF_ERROR(ExpectZero(status.leases(), "leases"));
      TC_RETURN_IF_ERROR(ExpectZero(status.active_transfers(), "transfers"));
      Baseline& baseline = baselines_[node];
      TC_ASSIGN_OR_RETURN(baseline.pool_bytes, PoolBytes(status));
      baseline.replicas = status.replicas();
      baseline.handle_connections = status.handle_connections();
      TC_ASSIGN_OR_RETURN(baseline.footprint, MeasureFootprint(cluster_.daemon(node).pid()));
      return absl::OkStatus();
    }));
  }
  TC_ASSIGN_OR_RETURN(global_store_baseline_, MeasureFootprint(cluster_.global_store().pid()));
  return absl::OkStatus();
}

absl::Status Invariants::CompareWithBaseline(int node, const v1::GetStatusResponse& status) {
  const Baseline& baseline = baselines_[node];
  TC_RETURN_IF_ERROR(ExpectZero(status.leases(), "leases"));
  TC_RETURN_IF_ERROR(ExpectZero(status.tickets(), "tickets"));
  TC_RETURN_IF_ERROR(ExpectZero(status.active_transfers(), "transfers"));
  TC_RETURN_IF_ERROR(ExpectZero(status.active_servings(), "servings"));
  if (status.handle_connections() > baseline.handle_connections) {
    return absl::InternalError(absl::StrCat(status.handle_connections(), " handle connections, ",
                                            baseline.handle_connections, " before"));
  }
  if (status.replicas() != baseline.replicas) {
    return absl::InternalError(absl::StrCat(status.replicas(), " replicas, ", baseline.replicas, " before"));
  }
  TC_ASSIGN_OR_RETURN(const auto pool_bytes, PoolBytes(status));
  for (const auto& [location, bytes] : baseline.pool_bytes) {
    const auto now = pool_bytes.find(location);
    if (now != pool_bytes.end() && now->second == bytes) continue;
    return absl::InternalError(absl::StrCat("pool ", location, " has ",
                                            now == pool_bytes.end() ? 0 : now->second, " bytes in use, ",
                                            bytes, " before"));
  }
  TC_ASSIGN_OR_RETURN(const Footprint now, MeasureFootprint(cluster_.daemon(node).pid()));
  return CompareFootprints(baseline.footprint, now, kFootprintSlack);
}

absl::Status Invariants::CheckNoGrants(SteadyTime deadline) {
  TC_ASSIGN_OR_RETURN(const auto admin, client::AdminClient::Connect(cluster_.addresses(0).unix_socket));
  return Await(0, deadline, [&](const v1::GetStatusResponse&) -> absl::Status {
    TC_ASSIGN_OR_RETURN(const auto cluster, admin->GetClusterStatus(Until(deadline)));
    TC_RETURN_IF_ERROR(ExpectZero(cluster.active_grants(), "grants"));
    TC_ASSIGN_OR_RETURN(const Footprint now, MeasureFootprint(cluster_.global_store().pid()));
    return Annotate(CompareFootprints(global_store_baseline_, now, kFootprintSlack), "global store");
  });
}

absl::Status Invariants::AwaitBaseline(SteadyTime deadline) {
  for (int node = 0; node < cluster_.daemons(); ++node) {
    TC_RETURN_IF_ERROR(
        Await(node, deadline, [&](const auto& status) { return CompareWithBaseline(node, status); }));
  }
  return CheckNoGrants(deadline);
}

}  // namespace tensorcast::chaos
