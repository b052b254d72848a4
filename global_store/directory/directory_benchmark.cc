// The directory with up to 100,000 artifacts, each with a key and a replica, on 1,000 nodes: the cost of each
// call, which must hardly grow.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "benchmark/benchmark.h"
#include "global_store/directory/directory.h"

namespace tensorcast::global_store {
namespace {

constexpr int64_t kNodes = 1000;
const SteadyTime kNow = SteadyTime() + absl::Seconds(1'700'000'000);
const absl::Time kWallNow = absl::FromUnixSeconds(1'700'000'000);

class CountingSecrets final : public Secrets {
 public:
  std::string NewGrantId() override { return absl::StrCat("grant-", ++count_); }
  std::string NewGrantKey() override { return std::string(32, 'k'); }

 private:
  int count_ = 0;
};

std::string NodeId(int64_t node) { return absl::StrCat("node-", node); }
std::string ArtifactId(int64_t artifact) { return absl::StrCat("tc2:artifact-", artifact); }
std::string Key(int64_t artifact) { return absl::StrCat("models/", artifact, "/prod"); }

std::vector<ReplicaInfo> InventoryOf(int64_t node, int64_t artifacts) {
  std::vector<ReplicaInfo> replicas;
  for (int64_t artifact = node; artifact < artifacts; artifact += kNodes) {
    replicas.push_back({.id = absl::StrCat("replica-", artifact),
                        .artifact_id = ArtifactId(artifact),
                        .node_id = NodeId(node),
                        .location = {.kind = LocationKind::kCpu},
                        .state = ReplicaState::kReady});
  }
  return replicas;
}

class World {
 public:
  explicit World(int64_t artifacts) : directory_({}, &secrets_) {
    DurableFacts facts;
    for (int64_t i = 0; i < artifacts; ++i) {
      facts.artifacts.push_back({.artifact_id = ArtifactId(i), .created = kWallNow, .updated = kWallNow});
      facts.keys.push_back(
          {.name = Key(i), .artifact_id = ArtifactId(i), .revision = 1, .updated = kWallNow});
    }
    directory_.Apply(facts, kNow);
    for (int64_t node = 0; node < kNodes; ++node) {
      const NodeFacts about{.node_id = NodeId(node),
                            .name = absl::StrCat("name-", node),
                            .incarnation = 1,
                            .host_id = absl::StrCat("host-", node),
                            .grpc_address = absl::StrCat("host-", node, ":7001"),
                            .handle_socket = "/run/handles.sock",
                            .lanes = {"ucx"}};
      ok_ = ok_ && directory_.RegisterNode(about, {}, kNow).ok() &&
            directory_.ReconcileInventory({NodeId(node), 1}, 1, InventoryOf(node, artifacts), kNow).ok();
    }
  }

  Directory& directory() { return directory_; }
  bool ok() const { return ok_; }

 private:
  CountingSecrets secrets_;
  Directory directory_;
  bool ok_ = true;
};

// Built once for each size: it takes longer than what is measured.
World& WorldOf(int64_t artifacts) {
  static std::map<int64_t, std::unique_ptr<World>> worlds;
  std::unique_ptr<World>& world = worlds[artifacts];
  if (world == nullptr) world = std::make_unique<World>(artifacts);
  return *world;
}

// Calls work(directory, i) with ever another i below the number of artifacts; false: it failed.
template <typename Work>
void Measure(benchmark::State& state, Work work) {
  World& world = WorldOf(state.range(0));
  if (!world.ok()) {
    state.SkipWithError("the directory refused the nodes");
    return;
  }
  int64_t i = 0;
  for (auto _ : state) {
    i = (i + 7919) % state.range(0);
    if (!work(world.directory(), i)) {
      state.SkipWithError("the directory refused a call");
      return;
    }
  }
}

void BM_ResolveKey(benchmark::State& state) {
  Measure(state, [](Directory& directory, int64_t i) { return directory.catalog().ResolveKey(Key(i)).ok(); });
}
BENCHMARK(BM_ResolveKey)->Arg(1000)->Arg(100'000);

void BM_Heartbeat(benchmark::State& state) {
  Measure(state, [](Directory& directory, int64_t i) {
    return directory.Heartbeat({NodeId(i % kNodes), 1}, {}, {}, 1, kNow).ok();
  });
}
BENCHMARK(BM_Heartbeat)->Arg(1000)->Arg(100'000);

void BM_GrantAndComplete(benchmark::State& state) {
  Measure(state, [](Directory& directory, int64_t i) {
    const NodeIdentity receiver{NodeId((i + 1) % kNodes), 1};
    const auto offer = directory.transfers().RequestGrant(
        {.receiver = receiver, .artifact_id = ArtifactId(i), .destination = {.kind = LocationKind::kCpu}},
        kNow);
    if (!offer.ok() || offer->granted.empty()) return false;
    const bool completed =
        directory.transfers()
            .CompleteGrant(receiver, offer->granted.front().grant.grant_id, GrantEnd::kSucceeded, false, kNow)
            .ok();
    directory.transfers().grants().TakeEnded();
    return completed;
  });
}
BENCHMARK(BM_GrantAndComplete)->Arg(1000)->Arg(100'000);

// One artifact that all of so many nodes hold, half of them while they fill, each with sources of its own:
// the work of a request must not grow with them.
void BM_GrantAmongHolders(benchmark::State& state) {
  CountingSecrets secrets;
  Directory directory({.transfers = {.filling_lanes = {"tcp"}}}, &secrets);
  directory.Apply(
      {.artifacts = {{.artifact_id = ArtifactId(0), .created = kWallNow, .updated = kWallNow}}, .keys = {}},
      kNow);
  const auto request = [&](int64_t node) {
    return GrantRequest{.receiver = {NodeId(node), 1},
                        .artifact_id = ArtifactId(0),
                        .destination = {.kind = LocationKind::kCpu},
                        .sources = 6};
  };
  for (int64_t node = 0; node <= state.range(0); ++node) {
    const NodeFacts about{.node_id = NodeId(node),
                          .name = absl::StrCat("name-", node),
                          .incarnation = 1,
                          .host_id = absl::StrCat("host-", node),
                          .grpc_address = absl::StrCat("host-", node, ":7001"),
                          .lanes = {"tcp"},
                          .labels = {{"zone", "z"}, {"rack", absl::StrCat("r", node / 40)}}};
    const bool ready = node % 2 == 0;
    const ReplicaInfo replica{.id = absl::StrCat("replica-", node),
                              .artifact_id = ArtifactId(0),
                              .node_id = NodeId(node),
                              .location = {.kind = LocationKind::kCpu},
                              .state = ready ? ReplicaState::kReady : ReplicaState::kFilling};
    const bool ok = directory.RegisterNode(about, {}, kNow).ok() &&
                    (node == state.range(0) ||
                     directory.ReconcileInventory({NodeId(node), 1}, 1, {replica}, kNow).ok()) &&
                    (ready || directory.transfers().RequestGrant(request(node), kNow).ok());
    if (!ok) return state.SkipWithError("the directory refused a node");
  }
  const NodeIdentity receiver{NodeId(state.range(0)), 1};
  for (auto _ : state) {
    GrantRequest asked = request(state.range(0));
    // The few that a transfer begins with, then all that it wants, while it holds the first.
    for (const uint32_t wanted : {2u, 6u}) {
      asked.sources = wanted;
      const auto offer = directory.transfers().RequestGrant(asked, kNow);
      if (!offer.ok()) return state.SkipWithError("the directory refused a request");
      for (const OfferedGrant& granted : offer->granted) asked.held_grants.push_back(granted.grant.grant_id);
      if (asked.held_grants.size() != wanted) return state.SkipWithError("fewer grants than were asked for");
    }
    for (const std::string& grant_id : asked.held_grants) {
      if (!directory.transfers().CompleteGrant(receiver, grant_id, GrantEnd::kSucceeded, false, kNow).ok()) {
        return state.SkipWithError("a grant did not end");
      }
    }
    directory.transfers().grants().TakeEnded();
  }
}
BENCHMARK(BM_GrantAmongHolders)->Arg(100)->Arg(1000)->Arg(10'000);

void BM_ReconcileOneNode(benchmark::State& state) {
  const std::vector<ReplicaInfo> inventory = InventoryOf(7, state.range(0));
  uint64_t sequence = 1;
  Measure(state, [&](Directory& directory, int64_t) {
    return directory.ReconcileInventory({NodeId(7), 1}, ++sequence, inventory, kNow).ok();
  });
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(inventory.size()));
}
BENCHMARK(BM_ReconcileOneNode)->Arg(1000)->Arg(100'000);

}  // namespace
}  // namespace tensorcast::global_store
