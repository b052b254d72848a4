#include "daemon/global_store_link/global_store_link.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "base/testing/no_threads.h"
#include "core/replica/inventory_digest.h"
#include "core/testing/test_artifact.h"
#include "daemon/global_store_link/eviction_guard.h"
#include "daemon/global_store_link/fake_global_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "otel/api/span.h"
#include "otel/api/testing/recorded_telemetry.h"
#include "rpc/retry.h"
#include "rpc/retry_after.h"

namespace tensorcast::daemon::global_store_link_test {
namespace {

ReplicaInfo Info(const std::string& id, ReplicaState state = ReplicaState::kReady) {
  return {.id = id, .artifact_id = "tc2:a", .state = state};
}

class FakeNode : public LinkedNode {
 public:
  std::vector<ReplicaInfo> Inventory() override { return inventory; }
  absl::StatusOr<std::shared_ptr<const Manifest>> FindManifest(std::string_view artifact_id) override {
    if (manifest != nullptr && manifest->id() == artifact_id) return manifest;
    return absl::NotFoundError("no manifest");
  }
  void FillPools(google::protobuf::RepeatedPtrField<v1::Pool>* pools) override {
    pools->Add()->set_capacity_bytes(50);
  }
  void FillHeartbeat(v1::HeartbeatRequest*) override {}
  void OnHeartbeat(const v1::HeartbeatResponse& response) override {
    absl::MutexLock lock(&mutex);
    heard.push_back(response);
  }

  std::vector<ReplicaInfo> inventory;  // set before the link starts
  std::shared_ptr<const Manifest> manifest;
  absl::Mutex mutex;
  std::vector<v1::HeartbeatResponse> heard ABSL_GUARDED_BY(mutex);
};

class LinkTest : public ::testing::Test {
 protected:
  LinkTest() : link_(Options()) {}
  ~LinkTest() override { link_.Stop(false); }

  GlobalStoreLink::Options Options() {
    GlobalStoreLink::Options options{
        .client = &store_,
        .feed = &feed_,
        .backoff = {.initial = absl::Milliseconds(1), .max = absl::Milliseconds(20)}};
    options.node.set_node_id("node");
    options.node.set_incarnation(7);
    options.node.set_name("a");
    options.on_replaced = [this](const absl::Status& why) {
      absl::MutexLock lock(&replaced_mutex_);
      replaced_ = why;
    };
    return options;
  }
  void Start() { ASSERT_EQ(link_.Start(&node_, "127.0.0.1:1"), absl::OkStatus()); }
  SteadyTime Soon() { return SteadyNow() + absl::Seconds(20); }

  FakeGlobalStore store_;
  ReplicaFeed feed_{nullptr, 100};
  FakeNode node_;
  absl::Mutex replaced_mutex_;
  absl::Status replaced_ ABSL_GUARDED_BY(replaced_mutex_);
  GlobalStoreLink link_;
};

TEST_F(LinkTest, StartWithoutThreads_IsAnError) {
  absl::Status started;
  if (!::tensorcast::testing::WithoutThreads([&] { started = link_.Start(&node_, "127.0.0.1:1"); })) {
    GTEST_SKIP() << "the kernel does not let this test refuse threads";
  }
  EXPECT_EQ(started.code(), absl::StatusCode::kResourceExhausted) << started;
  EXPECT_THAT(started.message(), ::testing::HasSubstr("register node a"));
}

TEST_F(LinkTest, Link_RegistersAddressAndSendsWholeInventory) {
  node_.inventory = {Info("one"), Info("two"), {.id = "first ingest, without an artifact yet"}};
  Start();
  ASSERT_TRUE(link_.WaitRegistered(Soon()).ok());
  EXPECT_TRUE(link_.standing().ok()) << link_.standing();
  ASSERT_TRUE(store_.Await([](auto& store) { return store.inventories.size() == 1; }));
  store_.With([](auto& store) {
    EXPECT_EQ(store.registrations.front().node().grpc_address(), "127.0.0.1:1");
    ASSERT_EQ(store.registrations.front().node().pools_size(), 1);
    EXPECT_EQ(store.registrations.front().node().pools(0).capacity_bytes(), 50);
    EXPECT_EQ(store.inventories.front().front().node().incarnation(), 7);
    EXPECT_EQ(store.inventories.front().front().replicas_size(), 2);
  });
  EXPECT_EQ(link_.grant_key().bytes, std::string(32, 'k'));
}

TEST_F(LinkTest, LargeInventory_IsSentInSeveralMessages) {
  for (int i = 0; i < 1201; ++i) node_.inventory.push_back(Info(absl::StrCat("replica", i)));
  Start();
  ASSERT_TRUE(store_.Await([](auto& store) { return store.inventories.size() == 1; }));
  store_.With([](auto& store) {
    int replicas = 0;
    for (const auto& message : store.inventories.front()) replicas += message.replicas_size();
    EXPECT_EQ(store.inventories.front().size(), 3);
    EXPECT_EQ(replicas, 1201);
  });
}

TEST_F(LinkTest, ReplicaUpdates_AreNumberedConsecutively) {
  Start();
  ASSERT_TRUE(link_.WaitRegistered(Soon()).ok());
  for (const char* id : {"one", "two", "three"}) {
    feed_.OnReplicaChanged(Info(id), nullptr);
    ASSERT_TRUE(link_.Flush(Soon()).ok());
  }
  store_.With([](auto& store) {
    for (size_t i = 0; i < store.updates.size(); ++i) EXPECT_EQ(store.updates[i].sequence(), i + 1);
    EXPECT_EQ(store.updates.back().replicas(0).replica_id(), "three");
  });
}

TEST_F(LinkTest, Heartbeat_HasDigestOfWhatIsHeld) {
  node_.inventory = {Info("one"), Info("two"), Info("fills", ReplicaState::kFilling)};
  Start();
  ASSERT_TRUE(link_.WaitRegistered(Soon()).ok());
  ASSERT_TRUE(link_.CheckIn(Soon()).ok());
  store_.With([](auto& store) {
    ASSERT_TRUE(store.last_heartbeat.has_inventory_digest());
    EXPECT_EQ(store.last_heartbeat.inventory_digest(),
              InventoryDigestOf(Info("one")) + InventoryDigestOf(Info("two")));
  });
}

TEST_F(LinkTest, FailedReport_LinksToRequestThatCausedIt) {
  const otel::testing::RecordedTelemetry recorded;
  Start();
  ASSERT_TRUE(store_.Await([](auto& store) { return store.inventories.size() == 1; }));
  store_.With([](auto& store) { store.down = absl::UnavailableError("the store is away"); });
  const TraceContext request = TraceContext::NewRoot();
  {
    const otel::Scope scope(request);
    feed_.Touch(Info("one"));
    feed_.Touch(Info("two"));
  }
  const otel::testing::RecordedSpan report = recorded.AwaitSpan("StoreDaemon/ReportReplicas");
  EXPECT_EQ(report.error, "UNAVAILABLE");
  ASSERT_EQ(report.links.size(), 1) << "one cause is one link";
  EXPECT_EQ(report.links[0].span_id, request.span_id);
}

TEST_F(LinkTest, NewEpoch_RegistersAndSendsInventoryAgain) {
  Start();
  ASSERT_TRUE(store_.Await([](auto& store) { return store.inventories.size() == 1; }));
  store_.With([](auto& store) { store.epoch = 2; });
  ASSERT_TRUE(link_.CheckIn(Soon()).ok());
  store_.With([](auto& store) {
    EXPECT_EQ(store.registrations.size(), 2);
    EXPECT_EQ(store.inventories.size(), 2);
  });
}

TEST_F(LinkTest, ForgottenNode_RegistersAgain) {
  Start();
  ASSERT_TRUE(store_.Await([](auto& store) { return store.inventories.size() == 1; }));
  store_.With([](auto& store) { store.knows_node = false; });
  ASSERT_TRUE(link_.CheckIn(Soon()).ok());
  EXPECT_EQ(store_.With([](auto& store) { return store.registrations.size(); }), 2);
}

TEST_F(LinkTest, ReplacedNode_NamesItsReplacementAndReturnsOnceAllowed) {
  Start();
  ASSERT_TRUE(link_.WaitRegistered(Soon()).ok());
  store_.With([](auto& store) { store.down = absl::AbortedError("the node is the daemon b now"); });
  EXPECT_FALSE(link_.CheckIn(SteadyNow()).ok());
  EXPECT_TRUE(tensorcast::testing::Eventually([&] {
    return absl::StrContains(link_.standing().message(), "remove the file node_id from the copy");
  }));
  EXPECT_THAT(link_.standing().message(), ::testing::HasSubstr("the daemon b now"));
  store_.With([](auto& store) { store.down = absl::OkStatus(); });
  EXPECT_TRUE(tensorcast::testing::Eventually([&] { return link_.CheckIn(Soon()).ok(); }));
  EXPECT_TRUE(link_.standing().ok());
  EXPECT_TRUE(link_.CheckNotReplaced().ok());
  absl::MutexLock lock(&replaced_mutex_);
  EXPECT_TRUE(replaced_.ok()) << replaced_;
}

TEST_F(LinkTest, NodeThatStaysReplaced_GivesUpForGood) {
  store_.node_ttl = absl::Milliseconds(20);
  Start();
  ASSERT_TRUE(link_.WaitRegistered(Soon()).ok());
  store_.With([](auto& store) { store.down = absl::AbortedError("the node is the daemon b now"); });
  // Without waiting for the end of its patience.
  EXPECT_EQ(link_.CheckIn(Soon()).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(link_.CheckNotReplaced().message(), ::testing::HasSubstr("the daemon b now"));
  {
    absl::MutexLock lock(&replaced_mutex_);
    const auto told = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(replaced_mutex_) { return !replaced_.ok(); };
    ASSERT_TRUE(replaced_mutex_.AwaitWithTimeout(absl::Condition(&told), absl::Seconds(20)));
    EXPECT_EQ(replaced_.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(replaced_.message(), ::testing::HasSubstr("the daemon b now"));
  }
  store_.With([](auto& store) { store.down = absl::OkStatus(); });
  EXPECT_FALSE(link_.WaitRegistered(Soon()).ok()) << "it does not come back";
}

TEST_F(LinkTest, UpdatesInFailedCall_AreResentAsInventory) {
  Start();
  ASSERT_TRUE(store_.Await([](auto& store) { return store.inventories.size() == 1; }));
  // The step that sent it has ended: what fails from here on is told by the standing.
  ASSERT_TRUE(tensorcast::testing::Eventually([&] { return link_.standing().ok(); }));
  store_.With([](auto& store) { store.down = absl::UnavailableError("gone"); });
  feed_.OnReplicaChanged(Info("changed meanwhile"), nullptr);
  EXPECT_TRUE(tensorcast::testing::Eventually([&] { return !link_.standing().ok(); }));
  EXPECT_EQ(link_.Flush(SteadyNow()).code(), absl::StatusCode::kUnavailable);
  store_.With([](auto& store) { store.down = absl::OkStatus(); });
  EXPECT_TRUE(store_.Await([](auto& store) { return store.inventories.size() >= 2; }));
  ASSERT_TRUE(link_.Flush(Soon()).ok());
  EXPECT_TRUE(link_.standing().ok());
}

TEST_F(LinkTest, RequestedInventory_IsSent) {
  Start();
  ASSERT_TRUE(store_.Await([](auto& store) { return store.inventories.size() == 1; }));
  store_.With([](auto& store) { store.updates_want_inventory = true; });
  feed_.OnReplicaChanged(Info("one"), nullptr);
  EXPECT_TRUE(store_.Await([](auto& store) { return store.inventories.size() == 2; }));
}

TEST_F(LinkTest, ArtifactsUnknownToGlobalStore_ArePublishedAgain) {
  node_.manifest = testing::MakeChunkedArtifact(1, 2).manifest;
  ReplicaInfo ready = Info("ready");
  ready.artifact_id = node_.manifest->id();
  node_.inventory = {ready};
  store_.unknown_artifacts = {node_.manifest->id(), "tc2:no-node-has-this"};
  Start();
  ASSERT_TRUE(store_.Await([](auto& store) { return !store.published.empty(); }));
  store_.With([this](auto& store) {
    EXPECT_EQ(store.published.size(), 1);
    EXPECT_EQ(store.published.front().first, node_.manifest->id());
    EXPECT_EQ(store.published.front().second.replica().replica_id(), "ready");
    EXPECT_EQ(store.published.front().second.key(), "");
  });
}

TEST_F(LinkTest, HeartbeatDirectives_ReachTheNode) {
  store_.heartbeat_response.add_revoked_grants("t");
  store_.heartbeat_interval = absl::Milliseconds(10);
  Start();
  ASSERT_TRUE(store_.Await([](auto& store) { return store.heartbeats >= 2; }));
  absl::MutexLock lock(&node_.mutex);
  ASSERT_FALSE(node_.heard.empty());
  EXPECT_EQ(node_.heard.front().revoked_grants(0), "t");
}

TEST_F(LinkTest, RefusedCall_WaitsAsLongAsTheStoreAsked) {
  constexpr absl::Duration kDelay = absl::Milliseconds(300);
  store_.down = rpc::RetryLater("the server is behind", kDelay);
  Start();
  ASSERT_TRUE(store_.Await([](auto& store) { return !store.refused.empty(); }));
  store_.With([](auto& store) { store.down = absl::OkStatus(); });
  ASSERT_TRUE(link_.WaitRegistered(Soon()).ok());
  const SteadyTime registered = SteadyNow();
  store_.With([&](auto& store) {
    EXPECT_EQ(store.refused.size(), 1) << "it came back early";
    EXPECT_GE(registered, store.refused.front() + kDelay);
  });
}

TEST_F(LinkTest, HeartbeatInterval_FollowsEachAnswer) {
  Start();  // the registration says an hour
  ASSERT_TRUE(store_.Await([](auto& store) { return store.inventories.size() == 1; }));
  store_.With([](auto& store) { store.heartbeat_interval = absl::Milliseconds(10); });
  ASSERT_TRUE(link_.CheckIn(Soon()).ok());
  EXPECT_TRUE(store_.Await([](auto& store) { return store.heartbeats >= 4; }));
}

TEST_F(LinkTest, HeartbeatThatFailed_IsRepeatedWithoutAnInventory) {
  Start();
  ASSERT_TRUE(store_.Await([](auto& store) { return store.inventories.size() == 1; }));
  ASSERT_TRUE(link_.Flush(Soon()).ok());
  store_.With([](auto& store) { store.down = absl::UnavailableError("gone"); });
  EXPECT_FALSE(link_.CheckIn(SteadyNow()).ok());
  ASSERT_TRUE(tensorcast::testing::Eventually([&] { return !link_.standing().ok(); }));
  store_.With([](auto& store) { store.down = absl::OkStatus(); });
  EXPECT_TRUE(store_.Await([](auto& store) { return store.heartbeats == 1; }));
  EXPECT_EQ(store_.With([](auto& store) { return store.inventories.size(); }), 1);
}

TEST_F(LinkTest, StopWithGoodbye_SendsEmptyInventory) {
  node_.inventory = {Info("one")};
  Start();
  ASSERT_TRUE(store_.Await([](auto& store) { return store.inventories.size() == 1; }));
  ASSERT_TRUE(link_.Flush(Soon()).ok());
  link_.Stop(/*goodbye=*/true);
  store_.With([](auto& store) {
    ASSERT_EQ(store.inventories.size(), 2);
    EXPECT_EQ(store.inventories.back().front().replicas_size(), 0);
  });
  EXPECT_EQ(link_.WaitRegistered(SteadyTime::InfiniteFuture()).code(), absl::StatusCode::kUnavailable);
}

TEST_F(LinkTest, RefusedConnection_IsNamedInTheError) {
  store_.down = absl::UnavailableError("connection refused");
  Start();
  const absl::Status status = link_.WaitRegistered(SteadyNow() + absl::Milliseconds(50));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("connection refused"));
}

TEST_F(LinkTest, Eviction_NeedsConsentUnlessPackedFileExists) {
  bool durable = false;
  ClusterEvictionGuard guard(&store_, &link_, [&](const ReplicaInfo&) { return durable; });
  EXPECT_TRUE(guard.MayEvict(Info("one")).ok());
  store_.With([](auto& store) { store.grants_eviction = false; });
  durable = true;
  EXPECT_EQ(guard.MayEvict(Info("one")).code(), absl::StatusCode::kFailedPrecondition);
  store_.With([](auto& store) { store.down = absl::UnavailableError("gone"); });
  EXPECT_TRUE(guard.MayEvict(Info("one")).ok());
  durable = false;
  EXPECT_EQ(guard.MayEvict(Info("one")).code(), absl::StatusCode::kUnavailable);
}

TEST_F(LinkTest, StoreThatWasRestarted_IsToldOfTheReplicaAndAskedAgain) {
  Start();
  ASSERT_TRUE(link_.WaitRegistered(SteadyNow() + absl::Seconds(20)).ok());
  ClusterEvictionGuard guard(&store_, &link_, [](const ReplicaInfo&) { return false; });
  store_.With([](auto& store) { store.unknown_evictions = 1; });
  const absl::Status allowed = guard.MayEvict(Info("one"));
  EXPECT_TRUE(allowed.ok()) << allowed;
  store_.With([](auto& store) { EXPECT_EQ(store.evictions.size(), 2); });
}

TEST_F(LinkTest, UnusedEvictionConsent_IsWithdrawnOnce) {
  ClusterEvictionGuard guard(&store_, &link_, [](const ReplicaInfo&) { return false; });
  for (const char* id : {"kept", "leaving", "gone"}) ASSERT_TRUE(guard.MayEvict(Info(id)).ok());
  guard.WithdrawUnused({Info("kept"), Info("leaving", ReplicaState::kDraining), Info("another")},
                       absl::ZeroDuration());
  guard.WithdrawUnused({Info("kept"), Info("leaving", ReplicaState::kDraining)}, absl::ZeroDuration());
  store_.With([](auto& store) {
    ASSERT_EQ(store.evictions.size(), 4) << "three asked for, one withdrawn, once";
    EXPECT_EQ(store.evictions.back().replica_id(), "kept");
    EXPECT_TRUE(store.evictions.back().withdraw());
  });
}

TEST_F(LinkTest, ConsentWithLostAnswer_IsWithdrawn) {
  ClusterEvictionGuard guard(&store_, &link_, [](const ReplicaInfo&) { return false; });
  store_.With([](auto& store) { store.down = absl::DeadlineExceededError("no answer in time"); });
  EXPECT_EQ(guard.MayEvict(Info("one")).code(), absl::StatusCode::kUnavailable);
  store_.With([](auto& store) { store.down = absl::OkStatus(); });
  guard.WithdrawUnused({Info("one")}, absl::ZeroDuration());
  store_.With([](auto& store) {
    ASSERT_EQ(store.evictions.size(), 1);
    EXPECT_TRUE(store.evictions[0].withdraw());
  });
}

TEST_F(LinkTest, FailedConsentWithdrawal_IsRetried) {
  ClusterEvictionGuard guard(&store_, &link_, [](const ReplicaInfo&) { return false; });
  const std::vector<ReplicaInfo> replicas = {Info("one"), Info("two")};
  for (const ReplicaInfo& replica : replicas) ASSERT_TRUE(guard.MayEvict(replica).ok());
  store_.With([](auto& store) { store.down = absl::UnavailableError("gone"); });
  guard.WithdrawUnused(replicas, absl::ZeroDuration());
  store_.With([](auto& store) { store.down = absl::OkStatus(); });
  for (int i = 0; i < 2; ++i) guard.WithdrawUnused(replicas, absl::ZeroDuration());
  store_.With([](auto& store) {
    ASSERT_EQ(store.evictions.size(), 4) << "two asked for, each withdrawn once";
    EXPECT_EQ(store.evictions[2].replica_id(), "one");
    EXPECT_TRUE(store.evictions[2].withdraw());
    EXPECT_EQ(store.evictions[3].replica_id(), "two");
    EXPECT_TRUE(store.evictions[3].withdraw());
  });
}

// What a global store meets that comes back, of nodes that lost it at the same moment, in simulated time.
struct Return {
  int busiest = 0;           // calls within one window
  absl::Duration all_taken;  // from its return to the last node that it took
};

Return Simulate(absl::Duration away, int taken_a_window) {
  constexpr int kNodes = 10'000;
  constexpr absl::Duration kWindow = absl::Milliseconds(10);
  const rpc::Backoff::Options waits = GlobalStoreLink::Options().backoff;
  std::vector<rpc::Backoff> nodes;
  nodes.reserve(kNodes);
  std::multimap<absl::Duration, rpc::Backoff*> calls;  // by when they are made
  for (int i = 0; i < kNodes; ++i) {
    nodes.emplace_back(waits);
    calls.emplace(nodes.back().Next(), &nodes.back());
  }
  Return seen;
  std::map<int64_t, int> windows;
  while (!calls.empty()) {
    const auto [now, node] = *calls.begin();
    calls.erase(calls.begin());
    int* const window = now < away ? nullptr : &windows[(now - away) / kWindow];
    if (window != nullptr) seen.busiest = std::max(seen.busiest, ++*window);
    if (window != nullptr && *window <= taken_a_window) {
      seen.all_taken = now - away;
    } else {
      calls.emplace(now + node->Next(), node);  // no daemon listens, or too much is under way
    }
  }
  return seen;
}

TEST(LinkBackoff, Backoff_SpreadsTenThousandNodesAfterOutage) {
  // A new leader is there in seconds. Their calls come over about as long as the longest wait: 134 in 10 ms.
  const Return spread = Simulate(absl::Seconds(10), /*taken_a_window=*/10'000);
  EXPECT_LT(spread.busiest, 250);
  EXPECT_LE(spread.all_taken, absl::Seconds(2));
}

TEST(LinkBackoff, Backoff_LetsBusyStoreAcceptAllNodesSoon) {
  // One that takes 10,000 in a second needs a second at best; the sooner it is back, the denser they come.
  for (const absl::Duration away : {absl::ZeroDuration(), absl::Seconds(1), absl::Seconds(3)}) {
    EXPECT_LE(Simulate(away, /*taken_a_window=*/100).all_taken, absl::Seconds(5)) << away;
  }
}

}  // namespace
}  // namespace tensorcast::daemon::global_store_link_test
