// `tensorcast bench followers`: simulated nodes that follow one key at a global store process, and what each
// new version costs the store.
#include "tools/workshop/bench/followers.h"

#include <grpcpp/channel.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/posix/process_limits.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/artifact/digest.h"
#include "core/artifact/manifest.h"
#include "core/difference/difference_artifact.h"
#include "proto/global_store.grpc.pb.h"
#include "proto/versions.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/convert/convert.h"
#include "rpc/pieces.h"
#include "tools/workshop/bench/bench_cluster.h"
#include "tools/workshop/bench/fleet.h"
#include "tools/workshop/bench/resident.h"

namespace tensorcast::bench {
namespace {

constexpr char kKey[] = "policy";
// Beside those of the nodes' connections.
constexpr int kOwnDescriptors = 256;
constexpr int kTensors = 300;
// Of the image, as bf16 weights of which 1.4 % of the elements moved (RESULTS.md).
constexpr double kDifferenceShare = 0.0087;
constexpr int kFollowAtOnce = 1000;
constexpr absl::Duration kLookAgain = absl::Milliseconds(100);
constexpr absl::Duration kStartTimeout = absl::Minutes(5);

using Stub = v1::GlobalStore::Stub;
using Calls = std::map<std::string, uint64_t, std::less<>>;

absl::StatusOr<std::shared_ptr<const Manifest>> MakeManifest(
    const ImageLayout& layout, const std::map<std::string, std::string>& metadata, ArtifactKind kind) {
  const std::vector<ChunkDigests> digests(layout.chunk_count(), {.xxh3 = {}, .blake3 = Blake3Digest()});
  return Manifest::Create(layout, digests, metadata, kind);
}

absl::StatusOr<std::shared_ptr<const Manifest>> MakeVersion(uint64_t bytes, int number) {
  ImageLayout layout;
  const uint64_t elements = bytes / kTensors;
  for (int i = 0; i < kTensors; ++i) {
    layout.tensors.push_back({.name = absl::StrCat("model.layers.", i, ".mlp.weight"),
                              .dtype = DType::kU8,
                              .shape = {elements},
                              .nbytes = elements});
  }
  TC_RETURN_IF_ERROR(AssignOffsets(layout));
  return MakeManifest(layout, {{"version", absl::StrCat(number)}}, ArtifactKind::kTensors);
}

absl::StatusOr<std::shared_ptr<const Manifest>> MakeDifference(const Manifest& base, const Manifest& target) {
  const auto records =
      static_cast<uint64_t>(kDifferenceShare * static_cast<double>(base.layout().image_bytes));
  return MakeManifest(DifferenceLayout(uint64_t{16} * base.layout().chunk_count(), records),
                      DifferenceMetadata({.base = base.id(), .target = target.id()}),
                      ArtifactKind::kDifference);
}

v1::Replica ReplicaOf(const Manifest& manifest) {
  v1::Replica replica;
  replica.set_replica_id(absl::StrCat("published-", manifest.id()));
  replica.set_artifact_id(manifest.id());
  replica.set_node_id(Fleet::NameOf(0));
  replica.mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
  replica.set_state(v1::REPLICA_STATE_READY);
  replica.set_image_bytes(manifest.layout().image_bytes);
  replica.set_chunks_total(manifest.layout().chunk_count());
  replica.set_chunks_present(manifest.layout().chunk_count());
  return replica;
}

// What the store has used, and what the followers have called, up to a moment.
struct Reading {
  absl::Duration cpu;
  Calls calls;
};

class FollowersBench {
 public:
  FollowersBench(const BenchOptions& options, const FollowersOptions& followers)
      : options_(options),
        nodes_((options.smoke ? 50 : followers.followers) + 1),
        interval_(options.smoke ? absl::Seconds(3) : followers.interval),
        versions_(options.RunsOr(5, 2)),
        bytes_(options.BytesOr(kGiB, kGiB)),
        timing_(followers.timing) {}

  absl::StatusOr<Rows> Run() {
    TC_RETURN_IF_ERROR(RaiseDescriptorLimit());
    if (DescriptorLimit() < nodes_ + kOwnDescriptors) {
      return absl::ResourceExhaustedError(
          absl::StrCat("simulate ", nodes_ - 1, " followers: the limit of open files is ", DescriptorLimit(),
                       ", and each has a connection; raise it (ulimit -Hn) or take fewer --followers"));
    }
    TC_ASSIGN_OR_RETURN(cluster_, BenchCluster::Start(options_, {.daemons = 0}));
    channel_ = OwnChannel(cluster_->processes().global_store_address(), nullptr);
    stub_ = v1::GlobalStore::NewStub(channel_);
    v1::RegisterNodeRequest publisher;
    *publisher.mutable_node() = Fleet::Describe(0);
    TC_RETURN_IF_ERROR(rpc::CallUnary(*stub_, &Stub::RegisterNode, Context(), publisher).status());
    TC_RETURN_IF_ERROR(Publish());
    TC_RETURN_IF_ERROR(StartFleet());
    TC_RETURN_IF_ERROR(Follow());
    TC_RETURN_IF_ERROR(MeasureIdle());
    TC_RETURN_IF_ERROR(MeasureVersions());
    TC_ASSIGN_OR_RETURN(const ResidentMemory resident, ReadResidentMemory(pid()));
    resident_bytes_ = resident.beyond_bytes;
    last_error_ = fleet_->last_error();
    fleet_.reset();
    stub_.reset();
    channel_.reset();
    TC_RETURN_IF_ERROR(cluster_->Stop());
    return Report();
  }

 private:
  // The next version, with a difference from the one before, in one publication that binds the key.
  absl::Status Publish() {
    const std::shared_ptr<const Manifest> base = newest_;
    TC_ASSIGN_OR_RETURN(newest_, MakeVersion(bytes_, ++published_));
    v1::PublishArtifactRequest first;
    first.mutable_node()->set_node_id(Fleet::NameOf(0));
    first.mutable_node()->set_incarnation(1);
    *first.mutable_replica() = ReplicaOf(*newest_);
    first.set_key(kKey);
    std::shared_ptr<const Manifest> difference;
    if (base != nullptr) {
      TC_ASSIGN_OR_RETURN(difference, MakeDifference(*base, *newest_));
      *first.mutable_difference_replica() = ReplicaOf(*difference);
    }
    const std::string& manifest = newest_->bytes();
    const size_t pieces = rpc::PieceCount(manifest.size());
    const size_t of_difference = difference != nullptr ? rpc::PieceCount(difference->bytes().size()) : 0;
    return rpc::CallClientStream(
               *stub_, &Stub::PublishArtifact, Context(), pieces + of_difference,
               [&](size_t index) {
                 v1::PublishArtifactRequest message;
                 if (index == 0) message = first;
                 if (index < pieces) {
                   message.set_manifest_piece(std::string(rpc::Piece(manifest, index)));
                 } else {
                   message.set_difference_piece(std::string(rpc::Piece(difference->bytes(), index - pieces)));
                 }
                 return message;
               })
        .status();
  }

  absl::Status StartFleet() {
    Say(absl::StrCat("followers: starting ", nodes_, " nodes"));
    TC_ASSIGN_OR_RETURN(const v1::GetClusterStatusResponse status, Ask());
    fleet_ = std::make_unique<Fleet>(FleetOptions{.address = cluster_->processes().global_store_address(),
                                                  .nodes = nodes_,
                                                  .artifacts = {newest_->id()},
                                                  .credentials = nullptr,
                                                  .follower = timing_});
    return Await("are registered", kStartTimeout,
                 [&] { return fleet_->ReportedTo(status.store_epoch()) == nodes_; });
  }

  absl::Status Follow() {
    const auto versions = v1::Versions::NewStub(channel_);
    for (int from = 1; from < nodes_; from += kFollowAtOnce) {
      v1::FollowKeyRequest request;
      request.set_key(kKey);
      for (int node = from; node < std::min(nodes_, from + kFollowAtOnce); ++node) {
        v1::FollowKeyRequest::Target& target = *request.add_targets();
        target.set_node_id(Fleet::NameOf(node));
        target.mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
      }
      TC_ASSIGN_OR_RETURN(const v1::FollowKeyResponse response,
                          rpc::CallUnary(*versions, &v1::Versions::Stub::FollowKey, Context(), request));
      for (const v1::FollowKeyResponse::Result& result : response.results()) {
        if (result.has_error()) TC_RETURN_IF_ERROR(rpc::FromProto(result.error()));
      }
    }
    return absl::OkStatus();
  }

  // Heartbeats cost the store something with or without new versions.
  absl::Status MeasureIdle() {
    TC_RETURN_IF_ERROR(Sleep(fleet_->counts().heartbeat_interval));
    TC_ASSIGN_OR_RETURN(const Reading before, Read());
    TC_RETURN_IF_ERROR(Sleep(interval_));
    TC_ASSIGN_OR_RETURN(const Reading after, Read());
    idle_ms_ = absl::ToDoubleMilliseconds(after.cpu - before.cpu) / followers();
    Say(absl::StrFormat("followers: idle, the store's CPU is %.3f ms a follower in %s", idle_ms_,
                        absl::FormatDuration(interval_)));
    return absl::OkStatus();
  }

  absl::Status MeasureVersions() {
    SteadyTime next = SteadyNow();
    for (int version = 0; version < versions_; ++version) {
      TC_RETURN_IF_ERROR(Sleep(next - SteadyNow()));
      next += interval_;
      TC_ASSIGN_OR_RETURN(const Reading before, Read());
      TC_RETURN_IF_ERROR(Publish());
      const SteadyTime bound = SteadyNow();
      const auto all = [&] {
        return fleet_->ReadyTimes(newest_->id()).size() == static_cast<size_t>(followers());
      };
      while (!all() && SteadyNow() < next) TC_RETURN_IF_ERROR(Sleep(kLookAgain));
      // The ends of tasks come with the next heartbeats.
      TC_RETURN_IF_ERROR(Sleep(next - SteadyNow()));
      TC_ASSIGN_OR_RETURN(const Reading after, Read());
      Add(version, before, after, bound);
    }
    return absl::OkStatus();
  }

  void Add(int version, const Reading& before, const Reading& after, SteadyTime bound) {
    std::vector<double> seconds;
    for (const SteadyTime at : fleet_->ReadyTimes(newest_->id())) {
      seconds.push_back(absl::ToDoubleSeconds(at - bound));
    }
    completed_.push_back(100.0 * static_cast<double>(seconds.size()) / followers());
    if (!seconds.empty()) {
      p50_.push_back(Percentile(seconds, 50));
      p99_.push_back(Percentile(seconds, 99));
    }
    cpu_ms_.push_back(absl::ToDoubleMilliseconds(after.cpu - before.cpu) / followers());
    double of_version = 0;
    for (const auto& [method, count] : after.calls) {
      const auto earlier = before.calls.find(method);
      const double calls =
          static_cast<double>(count - (earlier == before.calls.end() ? 0 : earlier->second)) / followers();
      calls_[method].push_back(calls);
      if (method != "Heartbeat") of_version += calls;
    }
    of_version_.push_back(of_version);
    Say(
        absl::StrFormat("followers: version %d: %.1f %% ready, %.2f calls, store CPU %.3f ms a follower, p50 "
                        "%.2f s, p99 %.2f s",
                        version + 1, completed_.back(), of_version, cpu_ms_.back(),
                        p50_.empty() ? 0 : p50_.back(), p99_.empty() ? 0 : p99_.back()));
  }

  absl::StatusOr<Reading> Read() {
    TC_ASSIGN_OR_RETURN(const absl::Duration cpu, CpuTime(pid()));
    return Reading{.cpu = cpu, .calls = fleet_->calls()};
  }

  absl::StatusOr<Rows> Report() const {
    if (p50_.empty()) {
      return absl::DeadlineExceededError(absl::StrCat("no follower had a version within ",
                                                      absl::FormatDuration(interval_),
                                                      "; the last error of a call: ", last_error_));
    }
    Rows rows;
    const auto add = [&](std::string metric, const char* unit, const std::vector<double>& values) {
      rows.push_back({.bench = "followers",
                      .lane = absl::StrCat(followers(), " followers"),
                      .metric = std::move(metric),
                      .bytes = bytes_,
                      .value = Summarize(values),
                      .unit = unit});
    };
    add("calls of a version", "calls", of_version_);
    for (const auto& [method, counts] : calls_) add(method, "calls", counts);
    add("store CPU of a version", "ms", cpu_ms_);
    add("store CPU without versions", "ms", {idle_ms_});
    add("p50", "s", p50_);
    add("p99", "s", p99_);
    add("ready in time", "%", completed_);
    add("store memory", "MiB", {static_cast<double>(resident_bytes_) / kMiB});
    rows.front().note = absl::StrCat("a version every ", absl::FormatDuration(interval_),
                                     "; per follower; heartbeats are in the CPU, and not in the calls");
    return rows;
  }

  absl::Status Sleep(absl::Duration duration) {
    TC_RETURN_IF_ERROR(options_.context.Check("bench"));
    absl::SleepFor(std::max(duration, absl::ZeroDuration()));
    return absl::OkStatus();
  }
  template <class Condition>
  absl::Status Await(std::string_view what, absl::Duration timeout, Condition condition) {
    const SteadyTime deadline = SteadyNow() + timeout;
    while (!condition()) {
      if (SteadyNow() > deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("not all nodes ", what, "; the last error: ", fleet_->last_error()));
      }
      TC_RETURN_IF_ERROR(Sleep(kLookAgain));
    }
    return absl::OkStatus();
  }
  // Names no node: counts alone.
  absl::StatusOr<v1::GetClusterStatusResponse> Ask() {
    v1::GetClusterStatusRequest request;
    request.add_node_names("-");
    return rpc::CallUnary(*stub_, &Stub::GetClusterStatus, Context(), request);
  }
  RequestContext Context() const {
    RequestContext context = options_.context.Child();
    context.deadline = SteadyNow() + absl::Seconds(60);
    return context;
  }
  int followers() const { return nodes_ - 1; }
  pid_t pid() { return cluster_->processes().global_store().pid(); }

  const BenchOptions& options_;
  const int nodes_;  // the publisher, and the followers
  const absl::Duration interval_;
  const int versions_;
  const uint64_t bytes_;
  const FleetFollower::Options timing_;
  std::unique_ptr<BenchCluster> cluster_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Stub> stub_;
  std::unique_ptr<Fleet> fleet_;
  std::shared_ptr<const Manifest> newest_;
  int published_ = 0;
  double idle_ms_ = 0;
  uint64_t resident_bytes_ = 0;
  std::string last_error_;
  std::vector<double> completed_, p50_, p99_, cpu_ms_, of_version_;
  std::map<std::string, std::vector<double>> calls_;
};

}  // namespace

absl::StatusOr<Rows> RunFollowers(const BenchOptions& options, const FollowersOptions& followers) {
  return FollowersBench(options, followers).Run();
}

}  // namespace tensorcast::bench
