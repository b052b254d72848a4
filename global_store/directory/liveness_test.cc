// Random small worlds of nodes that fill, hold parts, wait for each other, stop and go, each acting on the
// directory's answers as the daemon does. Every transfer ends, and succeeds while a node with the whole
// artifact is there.
#include <bitset>
#include <random>

#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store::liveness_test {
namespace {

constexpr size_t kChunks = 6;
constexpr absl::Duration kStep = absl::Milliseconds(50);
constexpr absl::Duration kPeerTimeout = absl::Seconds(5);
constexpr absl::Duration kHostmatesPatience = absl::Milliseconds(500);
constexpr absl::Duration kBeat = absl::Seconds(1);
constexpr absl::Duration kLongest = absl::Minutes(5);  // of a world
constexpr int kTries = 3;                              // of a source that gives nothing
constexpr int kMaxQuestions = 150;                     // of a receiver, in a world in which much goes wrong

class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {
    directory_.Apply({.artifacts = {{.artifact_id = "x"}}, .keys = {}}, now_);
    const int nodes = 3 + Below(7);
    for (int i = 0; i < nodes; ++i) AddNode(absl::StrCat("n", i), i == 0);
    root_stays_ = Below(2) == 0;
    root_goes_ = now_ + absl::Milliseconds(Below(4'000));
  }

  void Run() {
    const SteadyTime end = now_ + kLongest;
    for (; now_ < end && !AllEnded(); now_ += kStep) Step();
    for (const auto& [id, node] : nodes_) {
      EXPECT_TRUE(node.Ended()) << id << " waits for ever";
      EXPECT_LE(node.questions, kMaxQuestions) << id;
      const bool may_fail = !root_stays_ || node.stopped || !node.receives;
      EXPECT_TRUE(node.has.all() || may_fail) << id << " failed though " << kRoot << " has it";
    }
  }

 private:
  static constexpr char kRoot[] = "n0";
  struct Held {
    std::string grant_id;
    std::string source;
    SteadyTime gave;  // last, or when it was opened
    bool fruitful = false;
  };
  struct Node {
    std::string host;
    ReplicaState state = ReplicaState::kAllocating;  // not asked for yet; kGone: its node is gone
    std::bitset<kChunks> has;
    bool receives = false;
    SteadyTime arrives;
    SteadyTime stops = SteadyTime::InfiniteFuture();
    bool stopped = false;
    uint64_t sequence = 0;
    std::vector<Held> held;
    std::map<std::string, int> fruitless;  // tries in a row, by node
    SteadyTime asks_at;
    SteadyTime grew;
    SteadyTime stall_told;
    int questions = 0;
    bool Fills() const { return state == ReplicaState::kFilling; }
    bool Ended() const { return stopped || (!Fills() && state != ReplicaState::kAllocating); }
  };

  int Below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }

  void AddNode(const std::string& id, bool root) {
    NodeFacts facts = SomeNode(id);
    facts.host_id = absl::StrCat("host", Below(4));
    ASSERT_TRUE(directory_.RegisterNode(facts, {}, now_).ok());
    Node& node = nodes_[id];
    node.host = facts.host_id;
    ASSERT_TRUE(directory_.ReconcileInventory({id, 1}, 0, {}, now_).ok());
    if (root) {
      node.has.set();
      return Report(id, ReplicaState::kReady);
    }
    if (Below(4) == 0) {
      node.has = random_() % (1U << kChunks);
      return Report(id, node.has.any() ? ReplicaState::kPartial : ReplicaState::kFailed);
    }
    node.receives = true;
    node.arrives = now_ + absl::Milliseconds(Below(2) == 0 ? 0 : Below(3'000));
    if (Below(6) == 0) node.stops = now_ + absl::Milliseconds(Below(3'000));
  }

  void Report(const std::string& id, ReplicaState state) {
    Node& node = nodes_[id];
    node.state = state;
    ReplicaInfo replica = SomeReplica("r-" + id, "x", LocationKind::kCpu, state);
    replica.chunks_total = kChunks;
    replica.chunks_present = static_cast<uint32_t>(node.has.count());
    ASSERT_TRUE(directory_.UpdateReplicas({id, 1}, ++node.sequence, {replica}, now_).ok());
  }

  bool AllEnded() const {
    return std::ranges::all_of(nodes_, [](const auto& entry) { return entry.second.Ended(); });
  }

  void Step() {
    if (!root_stays_ && now_ >= root_goes_ && nodes_[kRoot].state == ReplicaState::kReady) {
      Report(kRoot, ReplicaState::kGone);
    }
    const bool beat = now_ >= next_beat_;
    for (auto& [id, node] : nodes_) {
      node.stopped |= now_ >= node.stops;
      if (node.stopped) continue;
      if (beat) Beat(id, node);
      if (node.state == ReplicaState::kAllocating && now_ >= node.arrives) {
        node.asks_at = node.grew = now_;
        if (Below(2) == 0) Ask(node, id);  // before its report arrives
        Report(id, ReplicaState::kFilling);
      } else if (node.Fills()) {
        Pull(node, id);
      }
    }
    if (beat) {
      next_beat_ = now_ + kBeat;
      directory_.Tick(now_);
    }
    NoteEnded();
  }

  void Beat(const std::string& id, Node& node) {
    std::vector<std::string> active;
    for (const Held& held : node.held) active.push_back(held.grant_id);
    ASSERT_TRUE(directory_.Heartbeat({id, 1}, {}, active, node.sequence, now_).ok());
    if (node.Fills()) Report(id, ReplicaState::kFilling);  // how far it is
  }

  // Grants that ended by themselves: their pulls break.
  void NoteEnded() {
    for (const EndedGrant& ended : directory_.transfers().grants().TakeEnded()) {
      Node& node = nodes_[ended.grant.receiver_node];
      const auto held = std::ranges::find(node.held, ended.grant.grant_id, &Held::grant_id);
      if (held == node.held.end()) continue;
      Judge(node, *held);
      node.held.erase(held);
      node.asks_at = now_;
    }
  }

  static void Judge(Node& node, const Held& held) {
    int& fruitless = node.fruitless[held.source];
    fruitless = held.fruitful ? 1 : fruitless + 1;
  }

  void Pull(Node& node, const std::string& id) {
    bool alone = !node.held.empty();  // with sources of its host that fill yet
    std::vector<Held> silent;
    for (Held& held : node.held) {
      Node& source = nodes_[held.source];
      const std::bitset<kChunks> wanted = source.stopped ? std::bitset<kChunks>() : source.has & ~node.has;
      if (wanted.any() && Below(3) == 0) {
        size_t chunk = static_cast<size_t>(Below(kChunks));
        while (!wanted.test(chunk)) chunk = (chunk + 1) % kChunks;
        node.has.set(chunk);
        held.gave = node.grew = now_;
        held.fruitful = true;
      }
      if (now_ - std::max(held.gave, node.grew) >= kPeerTimeout) silent.push_back(held);
      alone &= source.host == node.host && !source.has.all();
    }
    if (node.has.all()) return End(node, id, GrantEnd::kSucceeded, ReplicaState::kReady);
    for (const Held& held : silent) {
      Judge(node, held);
      ASSERT_TRUE(
          directory_.transfers().CompleteGrant({id, 1}, held.grant_id, GrantEnd::kFailed, false, now_).ok());
      std::erase_if(node.held, [&](const Held& other) { return other.grant_id == held.grant_id; });
      node.asks_at = now_;
    }
    if (alone && now_ - node.grew >= kHostmatesPatience && now_ >= node.stall_told + kHostmatesPatience) {
      node.stall_told = now_;
      return Ask(node, id, /*stalled=*/true);
    }
    if (now_ >= node.asks_at) Ask(node, id);
  }

  void Ask(Node& node, const std::string& id, bool stalled = false) {
    GrantRequest request{.receiver = {id, 1}, .artifact_id = "x", .destination = {}, .sources = 3};
    for (const auto& [source, fruitless] : node.fruitless) {
      const bool excluded = fruitless >= kTries || (!node.held.empty() && fruitless > 0);
      if (fruitless > 0) {
        (excluded ? request.excluded_replicas : request.slow_replicas).push_back("r-" + source);
      }
    }
    for (const Held& held : node.held) {
      request.held_grants.push_back(held.grant_id);
      ++request.sources;
      if (stalled) request.slow_replicas.push_back("r-" + held.source);
    }
    const auto offer = directory_.transfers().RequestGrant(request, now_);
    ASSERT_TRUE(offer.ok()) << offer.status();
    ++node.questions;
    for (const OfferedGrant& granted : offer->granted) {
      node.held.push_back({granted.grant.grant_id, granted.grant.source_node, now_});
    }
    node.asks_at = now_ + (node.held.empty() ? offer->retry_after : offer->look_again);
    if (node.held.empty() && offer->retry_after == absl::ZeroDuration()) {
      End(node, id, GrantEnd::kFailed, node.has.any() ? ReplicaState::kPartial : ReplicaState::kFailed);
    }
  }

  void End(Node& node, const std::string& id, GrantEnd how, ReplicaState state) {
    for (const Held& held : std::exchange(node.held, {})) {
      ASSERT_TRUE(directory_.transfers().CompleteGrant({id, 1}, held.grant_id, how, false, now_).ok());
    }
    Report(id, state);
  }

  std::mt19937_64 random_;
  SteadyTime now_ = SteadyTime() + absl::Seconds(1'700'000'000);
  CountingSecrets secrets_;
  Directory directory_{{.transfers = {.filling_lanes = {"ucx"}}}, &secrets_};
  std::map<std::string, Node> nodes_;
  SteadyTime next_beat_;
  bool root_stays_ = false;
  SteadyTime root_goes_;
};

TEST(Liveness, WholeReplicaStaysInRandomWorld_EveryTransferSucceeds) {
  for (uint64_t seed = 1; seed <= 2'000 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    World(seed).Run();
  }
}

}  // namespace
}  // namespace tensorcast::global_store::liveness_test
