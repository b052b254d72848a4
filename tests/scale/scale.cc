#include "tests/scale/scale.h"

#include <grpcpp/channel.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/artifact/manifest.h"
#include "core/artifact/test_util.h"
#include "global_store/app/global_store_server.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "rpc/pieces.h"
#include "rpc/protocol_version.h"

namespace tensorcast::scale {
namespace {

using Stub = v1::GlobalStore::Stub;

constexpr size_t kReplicasInAMessage = 1000;
constexpr int64_t kNow = 1'800'000'000;  // Unix seconds; the server's clock stands there

std::string NodeName(int node) { return absl::StrCat("node-", node); }
std::string KeyName(int artifact) {
  return absl::StrCat("team-", artifact % 50, "/model-", artifact, "/prod");
}

RequestContext Context() { return RequestContext::Background(absl::Minutes(2)); }

v1::NodeIdentity Identity(int node) {
  v1::NodeIdentity identity;
  identity.set_node_id(NodeName(node));
  identity.set_incarnation(1);
  return identity;
}

v1::Replica SomeReplica(int node, const std::string& artifact_id) {
  v1::Replica replica;
  replica.set_replica_id(absl::StrCat(NodeName(node), "/", artifact_id));
  replica.set_artifact_id(artifact_id);
  replica.mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
  replica.set_state(v1::REPLICA_STATE_READY);
  return replica;
}

// A model in small: eight tensors, one chunk, unlike all others by its metadata.
absl::StatusOr<std::shared_ptr<const Manifest>> SomeManifest(int number) {
  ImageLayout layout;
  for (int i = 0; i < 8; ++i) {
    layout.tensors.push_back({.name = absl::StrCat("model.layers.", i, ".weight"),
                              .dtype = DType::kBF16,
                              .shape = {64, 64},
                              .nbytes = 8192});
  }
  TC_RETURN_IF_ERROR(AssignOffsets(layout));
  return Manifest::Create(layout, testing::NoDigests(layout), {{"number", absl::StrCat(number)}});
}

int64_t ResidentBytes() {
  // Freed memory goes back to the kernel first. It would count as growth.
  malloc_trim(0);
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Runs work(0) ... work(count - 1) on `threads` threads; the first error ends it.
absl::Status OnThreads(int threads, int count, const std::function<absl::Status(int)>& work) {
  std::atomic<int> next = 0;
  absl::Mutex mutex;
  absl::Status first;
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&] {
      for (int job = next++; job < count; job = next++) {
        if (const absl::Status status = work(job); !status.ok()) {
          next = count;
          absl::MutexLock lock(&mutex);
          first.Update(status);
        }
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  return first;
}

absl::StatusOr<Latency> Measure(int samples, const std::function<absl::Status()>& call) {
  std::vector<double> times;
  for (int i = 0; i < samples; ++i) {
    const SteadyTime start = SteadyNow();
    TC_RETURN_IF_ERROR(call());
    times.push_back(absl::ToDoubleMicroseconds(SteadyNow() - start));
  }
  std::sort(times.begin(), times.end());
  return Latency{.p50_us = times[times.size() / 2], .p99_us = times[times.size() * 99 / 100]};
}

// The simulated nodes and the server. Artifact N belongs to node N and, from the first reconciliation on,
// also to the node after it. Each step publishes a part of the artifacts, reports all inventories and then
// measures single calls while nothing else runs.
class Fleet {
 public:
  explicit Fleet(const Options& options) : options_(options) {}

  absl::StatusOr<std::vector<Step>> Run() {
    TC_RETURN_IF_ERROR(Start());
    const int64_t before = ResidentBytes();
    std::vector<Step> steps;
    for (int i = 1; i <= options_.steps; ++i) {
      Step step;
      TC_RETURN_IF_ERROR(Fill(static_cast<int>(int64_t{options_.artifacts} * i / options_.steps), step));
      TC_RETURN_IF_ERROR(ReconcileAll(step));
      TC_RETURN_IF_ERROR(MeasureCalls(step));
      step.resident_bytes = ResidentBytes() - before;
      TC_RETURN_IF_ERROR(Count(step));
      steps.push_back(step);
    }
    return steps;
  }

 private:
  template <class Request, class Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                const std::type_identity_t<Request>& request) {
    return rpc::CallUnary(*stub_, method, Context(), request);
  }

  absl::Status Start() {
    global_store::GlobalStoreOptions options;
    options.listen = absl::StrCat("unix:", options_.directory, "/gs.sock");
    options.metadata_path = options_.directory + "/metadata.db";
    // Time stands still: nodes that send no heartbeats do not expire while others publish.
    options.clock = [] { return SteadyTime() + absl::Seconds(kNow); };
    TC_ASSIGN_OR_RETURN(server_, global_store::GlobalStoreServer::Start(options));
    stub_ = v1::GlobalStore::NewStub(rpc::MakeChannel(server_->address()));
    ids_.resize(options_.artifacts);
    for (std::string& id : ids_) id.reserve(64);  // so that they do not count as the server's
    return OnThreads(options_.callers, options_.nodes, [&](int node) { return Register(node); });
  }

  absl::Status Register(int node) {
    v1::RegisterNodeRequest request;
    request.mutable_node()->set_node_id(NodeName(node));
    request.mutable_node()->set_name(NodeName(node));
    request.mutable_node()->set_incarnation(1);
    request.mutable_node()->set_host_id(absl::StrCat("host of ", NodeName(node)));
    request.mutable_node()->set_grpc_address("127.0.0.1:1");
    request.mutable_node()->add_lanes("tcp");
    request.mutable_node()->set_protocol_version(rpc::kProtocolVersion);
    return Call(&Stub::RegisterNode, request).status();
  }

  int HomeOf(int artifact) const { return artifact % options_.nodes; }
  int SecondHomeOf(int artifact) const { return (artifact + 1) % options_.nodes; }

  absl::Status Publish(int artifact) {
    TC_ASSIGN_OR_RETURN(const std::shared_ptr<const Manifest> manifest, SomeManifest(artifact));
    ids_[artifact] = manifest->id();
    const auto message = [&](size_t index) {
      v1::PublishArtifactRequest request;
      if (index == 0) {
        *request.mutable_node() = Identity(HomeOf(artifact));
        *request.mutable_replica() = SomeReplica(HomeOf(artifact), manifest->id());
        request.set_key(KeyName(artifact));
      }
      request.set_manifest_piece(std::string(rpc::Piece(manifest->bytes(), index)));
      return request;
    };
    return rpc::CallClientStream(*stub_, &Stub::PublishArtifact, Context(),
                                 rpc::PieceCount(manifest->bytes().size()), message)
        .status();
  }

  absl::Status Fill(int until, Step& step) {
    const int count = until - published_;
    const SteadyTime start = SteadyNow();
    TC_RETURN_IF_ERROR(
        OnThreads(options_.callers, count, [&](int index) { return Publish(published_ + index); }));
    step.publish_per_second = count / absl::ToDoubleSeconds(SteadyNow() - start);
    published_ = until;
    return absl::OkStatus();
  }

  // What a node holds: the artifacts it published, and copies of its neighbour's.
  std::vector<std::string> InventoryOf(int node) const {
    std::vector<std::string> held;
    for (int artifact = node; artifact < published_; artifact += options_.nodes) {
      held.push_back(ids_[artifact]);
    }
    const int neighbour = (node + options_.nodes - 1) % options_.nodes;
    for (int artifact = neighbour; artifact < published_; artifact += options_.nodes) {
      if (options_.nodes > 1) held.push_back(ids_[artifact]);
    }
    return held;
  }

  absl::Status Reconcile(int node) {
    const std::vector<std::string> held = InventoryOf(node);
    const size_t messages =
        std::max<size_t>(1, (held.size() + kReplicasInAMessage - 1) / kReplicasInAMessage);
    const auto message = [&](size_t index) {
      v1::ReconcileInventoryRequest request;
      *request.mutable_node() = Identity(node);
      request.set_sequence(1 + rounds_);
      for (size_t i = index * kReplicasInAMessage;
           i < std::min(held.size(), (index + 1) * kReplicasInAMessage); ++i) {
        *request.add_replicas() = SomeReplica(node, held[i]);
      }
      return request;
    };
    TC_ASSIGN_OR_RETURN(
        const v1::ReconcileInventoryResponse response,
        rpc::CallClientStream(*stub_, &Stub::ReconcileInventory, Context(), messages, message));
    if (response.unknown_artifacts_size() == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(response.unknown_artifacts_size(), " artifacts of ",
                                            NodeName(node), " are unknown to the global store"));
  }

  absl::Status ReconcileAll(Step& step) {
    ++rounds_;
    const SteadyTime start = SteadyNow();
    TC_RETURN_IF_ERROR(
        OnThreads(options_.callers, options_.nodes, [&](int node) { return Reconcile(node); }));
    step.reconcile_us_each = absl::ToDoubleMicroseconds(SteadyNow() - start) / (2.0 * published_);
    return absl::OkStatus();
  }

  int SomeArtifact() { return std::uniform_int_distribution<int>(0, published_ - 1)(random_); }

  absl::Status ResolveOne() {
    const int artifact = SomeArtifact();
    v1::ResolveKeyRequest request;
    request.set_key(KeyName(artifact));
    TC_ASSIGN_OR_RETURN(const v1::ResolveKeyResponse response, Call(&Stub::ResolveKey, request));
    if (response.key().artifact_id() == ids_[artifact]) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(KeyName(artifact), " is bound to something else"));
  }

  // A pull by a node that does not hold the artifact: granted, then over.
  absl::Status GrantOne() {
    const int artifact = SomeArtifact();
    // With at least 4 nodes, half of the fleet away from the artifact's node is neither of its two nodes.
    const int receiver = (artifact + options_.nodes / 2) % options_.nodes;
    v1::RequestReplicaTransportRequest request;
    *request.mutable_node() = Identity(receiver);
    request.set_artifact_id(ids_[artifact]);
    request.mutable_timeout()->set_seconds(60);
    TC_ASSIGN_OR_RETURN(const v1::RequestReplicaTransportResponse response,
                        Call(&Stub::RequestReplicaTransport, request));
    if (response.grants().empty()) {
      return absl::InternalError(absl::StrCat("no grant: ", response.no_source_reason()));
    }
    const std::string& source = response.grants(0).source().node_id();
    if (source != NodeName(HomeOf(artifact)) && source != NodeName(SecondHomeOf(artifact))) {
      return absl::InternalError(absl::StrCat(source, " does not hold what it is to serve"));
    }
    v1::CompleteReplicaTransportRequest end;
    *end.mutable_node() = Identity(receiver);
    end.set_grant_id(response.grants(0).grant_id());
    // Else the source's slots fill up with the samples, and later requests would measure a busy fleet.
    end.set_outcome(v1::TRANSPORT_OUTCOME_SUCCEEDED);
    return Call(&Stub::CompleteReplicaTransport, end).status();
  }

  absl::Status BeatOne() {
    v1::HeartbeatRequest request;
    *request.mutable_node() = Identity(SomeArtifact() % options_.nodes);
    request.set_inventory_sequence(1 + rounds_);
    TC_ASSIGN_OR_RETURN(const v1::HeartbeatResponse response, Call(&Stub::Heartbeat, request));
    return response.inventory_wanted() ? absl::InternalError("an inventory is wanted that was just sent")
                                       : absl::OkStatus();
  }

  absl::Status MeasureCalls(Step& step) {
    TC_ASSIGN_OR_RETURN(step.resolve, Measure(options_.samples, [&] { return ResolveOne(); }));
    TC_ASSIGN_OR_RETURN(step.grant, Measure(options_.samples, [&] { return GrantOne(); }));
    TC_ASSIGN_OR_RETURN(step.heartbeat, Measure(options_.samples, [&] { return BeatOne(); }));
    return absl::OkStatus();
  }

  absl::Status Count(Step& step) {
    TC_ASSIGN_OR_RETURN(const v1::GetClusterStatusResponse status, Call(&Stub::GetClusterStatus, {}));
    step.artifacts = status.artifacts();
    step.replicas = status.replicas();
    const auto wanted = static_cast<uint64_t>(published_);
    if (status.artifacts() == wanted && status.keys() == wanted && status.replicas() == 2 * wanted &&
        status.active_grants() == 0 && status.nodes_size() == options_.nodes) {
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat("the global store counts ", status.artifacts(), " artifacts, ",
                                            status.keys(), " keys, ", status.replicas(), " replicas, ",
                                            status.active_grants(), " grants and ", status.nodes_size(),
                                            " nodes after ", wanted, " artifacts were published"));
  }

  const Options options_;
  std::unique_ptr<global_store::GlobalStoreServer> server_;
  std::unique_ptr<Stub> stub_;
  std::vector<std::string> ids_;  // of the artifacts
  int published_ = 0;
  uint64_t rounds_ = 0;  // of reconciliation
  std::mt19937 random_{1};
};

}  // namespace

absl::StatusOr<std::vector<Step>> RunFleet(const Options& options) {
  if (options.artifacts < 1 || options.nodes < 4 || options.steps < 1 || options.steps > options.artifacts ||
      options.callers < 1 || options.samples < 1) {
    return absl::InvalidArgumentError(
        "scale: at least 4 nodes, 1 caller, 1 sample, and 1 artifact a step are needed");
  }
  return Fleet(options).Run();
}

std::string Table(const std::vector<Step>& steps) {
  std::string table = absl::StrFormat("%9s %9s %9s | %15s | %15s | %15s | %10s | %8s %9s\n", "artifacts",
                                      "replicas", "publish/s", "resolve us", "grant+end us", "heartbeat us",
                                      "reconcile", "resident", "bytes");
  absl::StrAppend(
      &table, absl::StrFormat("%9s %9s %9s | %7s %7s | %7s %7s | %7s %7s | %10s | %8s %9s\n", "", "", "",
                              "p50", "p99", "p50", "p99", "p50", "p99", "us/replica", "MiB", "/artifact"));
  for (const Step& step : steps) {
    absl::StrAppend(
        &table,
        absl::StrFormat("%9d %9d %9.0f | %7.0f %7.0f | %7.0f %7.0f | %7.0f %7.0f | %10.2f | %8.1f %9.0f\n",
                        step.artifacts, step.replicas, step.publish_per_second, step.resolve.p50_us,
                        step.resolve.p99_us, step.grant.p50_us, step.grant.p99_us, step.heartbeat.p50_us,
                        step.heartbeat.p99_us, step.reconcile_us_each, step.resident_bytes / 1048576.0,
                        static_cast<double>(step.resident_bytes) / static_cast<double>(step.artifacts)));
  }
  return table;
}

}  // namespace tensorcast::scale
