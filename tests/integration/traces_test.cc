// Traces: what a request does is one trace over all processes, and links say what caused what is not below
// it.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "base/steady_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensorcast/client.h"
#include "tests/integration/telemetry_fixture.h"

namespace tensorcast::testing::traces_test {
namespace {

using ::testing::SizeIs;

// "A single request produces a coherent trace across Global Store, Daemon, and Core, including P2P stages
// with appropriate child relationships or links."
TEST_F(AcceptanceCriteria, Traces_RequestIsOneCoherentTraceDownToStages) {
  StartAll();
  TestNode& a = cluster_.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster_.AddNode("b", OnItsOwnHost);
  const client::PutResult put = Import(a, MakeChunkedArtifact(1, 9, kTestChunkBytes), {.key = "model"});
  const RequestContext request = Soon();
  ASSERT_TRUE(b.client().Get(request, "model", {.location = "gpu:0", .attach = false}).ok());

  const Trace trace =
      AwaitTrace(request, {"Client/Get", "StoreDaemon/MaterializeReplica", "GlobalStore/DescribeArtifact",
                           "GlobalStore/RequestReplicaTransport", "P2P/Connect", "StoreDaemon/OpenPull",
                           "StoreEngine/P2PIngest", "P2P/Pull", "P2P/Verify", "Device/Copy", "P2P/Serve"});
  std::map<std::string, std::string> name_of;
  for (const auto& [name, span] : trace) name_of[span.span_id] = name;
  for (const auto& [name, span] : trace) {
    EXPECT_EQ(span.parent_span_id.empty(), name == "Client/Get") << name << ": one root";
    EXPECT_TRUE(span.parent_span_id.empty() || name_of.contains(span.parent_span_id))
        << name << " is an orphan";
    // An ingest that has all that it needs gives up asking for further sources.
    const bool given_up = name == "GlobalStore/RequestReplicaTransport" && span.status_message == "CANCELLED";
    EXPECT_TRUE(!span.error || given_up) << name << ": " << span.status_message;
  }
  const auto parent_of = [&](const std::string& name) { return name_of[Only(trace, name).parent_span_id]; };
  for (const char* stage : {"P2P/Pull", "P2P/Verify", "Device/Copy"}) {
    EXPECT_EQ(parent_of(stage), "StoreEngine/P2PIngest");
    EXPECT_EQ(Only(trace, stage).attributes.at("tc.lane"), "loopback") << stage;
    EXPECT_EQ(Only(trace, stage).attributes.at("tc.chunks"), "9") << stage << ": one span for all chunks";
  }
  EXPECT_EQ(parent_of("StoreEngine/P2PIngest"), "StoreDaemon/MaterializeReplica");
  EXPECT_EQ(parent_of("P2P/Connect"), "StoreEngine/P2PIngest");
  for (auto [it, end] = trace.equal_range("GlobalStore/RequestReplicaTransport"); it != end; ++it) {
    const std::string parent = name_of[it->second.parent_span_id];
    EXPECT_TRUE(parent == "StoreEngine/P2PIngest" || parent == "GlobalStore/RequestReplicaTransport")
        << parent;
  }
  EXPECT_EQ(parent_of("P2P/Serve"), "StoreDaemon/OpenPull");
  ASSERT_THAT(Only(trace, "P2P/Serve").links, SizeIs(1));
  EXPECT_EQ(name_of[Only(trace, "P2P/Serve").links[0].span_id], "P2P/Pull")
      << "the source's work is linked to the pull that it serves, which is not an ancestor of it";
  EXPECT_EQ(Only(trace, "StoreEngine/P2PIngest").attributes.at("tc.artifact.id"), put.artifact_id);
}

// By a client that has just connected. The seventh call, UpdateReplicas, is the link's own, and belongs to no
// get: it reports what changed on the node, for all that happened meanwhile.
TEST_F(AcceptanceCriteria, Traces_ColdGetMakesSixCalls) {
  StartAll();
  TestNode& a = cluster_.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster_.AddNode("b", OnItsOwnHost);
  Import(a, MakeChunkedArtifact(27, 5, kTestChunkBytes), {.key = "model"});
  const otel::StringMap status = {{"side", "client"}, {"method", "StoreDaemon/GetStatus"}};
  EXPECT_TRUE(AwaitMetric("tc_rpc_requests_total", status)) << "the import's, for the handle socket";
  const double before = Metric("tc_rpc_requests_total", status);
  const auto fresh = client::Client::Connect({.daemon = b.server().addresses().back()});
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  const RequestContext request = Soon();
  const auto replica = (*fresh)->Get(request, "model", {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  const std::set<std::string> expected = {
      "GlobalStore/CompleteReplicaTransport", "GlobalStore/DescribeArtifact",
      "GlobalStore/RequestReplicaTransport",  "StoreDaemon/ClosePull",
      "StoreDaemon/MaterializeReplica",       "StoreDaemon/OpenPull"};
  const Trace trace = AwaitTrace(request, {expected.begin(), expected.end()});
  std::set<std::string> calls = NamesOf(trace);
  std::erase_if(calls, [](const std::string& name) {
    return !absl::StartsWith(name, "StoreDaemon/") && !absl::StartsWith(name, "GlobalStore/");
  });
  EXPECT_EQ(calls, expected);
  for (const std::string& name : expected) {
    // A span of the caller and one of the server. The transfer may ask for further sources while it runs.
    if (name != "GlobalStore/RequestReplicaTransport") {
      EXPECT_LE(trace.count(name), 2) << name;
    }
  }
  EXPECT_TRUE(AwaitMetric("tc_rpc_requests_total", {{"method", "StoreDaemon/MaterializeReplica"}}));
  EXPECT_EQ(Metric("tc_rpc_requests_total", status), before) << "neither to connect nor to attach";
}

TEST_F(AcceptanceCriteria, Traces_ServingOfLocalPullIsLinkedToItsPull) {
  StartAll();
  TestNode& a = cluster_.AddNode("a");
  TestNode& b = cluster_.AddNode("b");
  const client::PutResult put = Import(a, MakeChunkedArtifact(2, 5, kTestChunkBytes));
  const RequestContext request = Soon();
  ASSERT_TRUE(b.client().Get(request, put.artifact_id, {.attach = false}).ok());
  const Trace trace = AwaitTrace(request, {"StoreDaemon/AttachReplica", "P2P/Serve", "P2P/Pull"});
  const ReceivedSpan& serve = Only(trace, "P2P/Serve");
  EXPECT_EQ(serve.attributes.at("tc.lane"), "local");
  ASSERT_THAT(serve.links, SizeIs(1));
  EXPECT_EQ(serve.links[0].span_id, Only(trace, "P2P/Pull").span_id);
}

// What is told after a transfer has ended belongs to it, and so do the lines about one that failed.
TEST_F(AcceptanceCriteria, Traces_CallsAfterTransferBelongToItsTrace) {
  StartAll();
  TestNode& a = cluster_.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster_.AddNode("b", OnItsOwnHost);
  const client::PutResult put = Import(a, MakeChunkedArtifact(20, 5, kTestChunkBytes));
  const RequestContext request = Soon();
  ASSERT_TRUE(b.client().Get(request, put.artifact_id, {.attach = false}).ok());
  const Trace trace = AwaitTrace(
      request, {"StoreEngine/P2PIngest", "StoreDaemon/ClosePull", "GlobalStore/CompleteReplicaTransport"});
  const std::string ingest = Only(trace, "StoreEngine/P2PIngest").span_id;
  for (const char* name : {"StoreDaemon/ClosePull", "GlobalStore/CompleteReplicaTransport"}) {
    // The span of the caller may come after that of the server.
    EXPECT_TRUE(collector_->WaitFor(kArrival, [&] {
      const Trace now = TraceOf(request);
      const auto [first, last] = now.equal_range(name);
      return std::any_of(first, last, [&](const auto& s) { return s.second.parent_span_id == ingest; });
    })) << name;
  }

  const TestArtifact damaged = MakeChunkedArtifact(21, 5, kTestChunkBytes);
  const client::PutResult wrong = Import(a, damaged);
  Damage(a, wrong.replica_id);
  const RequestContext failing = Soon();
  ASSERT_FALSE(b.client().Get(failing, wrong.artifact_id, {.attach = false}).ok());
  EXPECT_TRUE(AwaitLog(failing, " failed")) << "the global store's line about the transport";
}

TEST_F(AcceptanceCriteria, Traces_GetThatJoinsIngestIsLinkedToIt) {
  StartAll();
  TestNode& a = cluster_.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster_.AddNode("b", OnItsOwnHost);
  const client::PutResult put = Import(a, MakeChunkedArtifact(22, 5, kTestChunkBytes));
  b.gate().Hold(/*pass=*/1);
  const RequestContext first = Soon();
  auto running = b.client().StartGet(first, put.artifact_id, {.attach = false});
  b.gate().AwaitHeld(1);
  // One that joins and gives up, and one that waits. Once the daemon tells of a chunk, they have joined.
  const auto join = [&](const RequestContext& request) {
    auto told = std::make_shared<absl::Notification>();
    auto get = b.client().StartGet(request, put.artifact_id,
                                   {.attach = false, .on_progress = [told](const TransferProgress&) {
                                      if (!told->HasBeenNotified()) told->Notify();
                                    }});
    EXPECT_TRUE(told->WaitForNotificationWithTimeout(kArrival));
    return get;
  };
  const RequestContext impatient = Soon();
  join(impatient)->Cancel();
  AwaitTrace(impatient, {"StoreEngine/JoinIngest"});
  const RequestContext patient = Soon();
  auto waiting = join(patient);
  b.gate().Release();
  ASSERT_TRUE(running->Wait(SteadyTime::InfiniteFuture()).ok());
  ASSERT_TRUE(waiting->Wait(SteadyTime::InfiniteFuture()).ok());
  const Trace of_first = AwaitTrace(first, {"StoreEngine/P2PIngest"});
  EXPECT_EQ(of_first.count("StoreEngine/JoinIngest"), 0);
  const std::string ingest = Only(of_first, "StoreEngine/P2PIngest").span_id;
  for (const bool gave_up : {true, false}) {
    const Trace trace = AwaitTrace(gave_up ? impatient : patient, {"StoreEngine/JoinIngest"});
    EXPECT_EQ(trace.count("StoreEngine/P2PIngest"), 0);
    const ReceivedSpan& joined = Only(trace, "StoreEngine/JoinIngest");
    EXPECT_EQ(joined.attributes.at("tc.shared"), "true");
    EXPECT_EQ(joined.error, gave_up) << joined.status_message;
    ASSERT_THAT(joined.links, SizeIs(1));
    EXPECT_EQ(joined.links[0].trace_id, first.trace.TraceIdHex());
    EXPECT_EQ(joined.links[0].span_id, ingest);
  }
}

// From a peer over the network, from one of the same host, and from another place on the same node.
TEST_F(AcceptanceCriteria, Traces_IngestIsLinkedToIngestOfItsSource) {
  StartAll();
  TestNode& a = cluster_.AddNode("a");
  TestNode& neighbour = cluster_.AddNode("neighbour");
  TestNode& far = cluster_.AddNode("far", OnItsOwnHost);
  const RequestContext import = Soon();
  const TestArtifact artifact = MakeChunkedArtifact(23, 5, kTestChunkBytes);
  auto put = a.client().Import(import, cluster_.WriteModel("model", artifact), {});
  ASSERT_TRUE(put.ok()) << put.status();
  const std::string maker =
      Only(AwaitTrace(import, {"StoreEngine/DiskIngest"}), "StoreEngine/DiskIngest").span_id;
  const auto get = [&](TestNode& node, const std::string& location) {
    const RequestContext request = Soon();
    EXPECT_TRUE(node.client().Get(request, put->artifact_id, {.location = location, .attach = false}).ok());
    return request;
  };
  const auto expect_link = [&](const RequestContext& request, const std::string& name) {
    const Trace trace = AwaitTrace(request, {name});
    const ReceivedSpan& ingest = Only(trace, name);
    ASSERT_THAT(ingest.links, SizeIs(1)) << name;
    EXPECT_EQ(ingest.links[0].trace_id, import.trace.TraceIdHex()) << name;
    EXPECT_EQ(ingest.links[0].span_id, maker) << name;
  };
  expect_link(get(a, "gpu:0"), "StoreEngine/LocalIngest");
  const auto replicas = a.admin().ListReplicas(Soon(), put->artifact_id);
  ASSERT_TRUE(replicas.ok()) << replicas.status();
  ASSERT_THAT(*replicas, SizeIs(2));
  for (const v1::Replica& replica : *replicas) {
    if (replica.replica_id() != put->replica_id) {
      ASSERT_TRUE(a.admin().EvictReplica(Soon(), replica.replica_id(), /*force=*/true).ok());
    }
  }
  expect_link(get(neighbour, "cpu"), "StoreEngine/P2PIngest");
  ASSERT_TRUE(
      neighbour.admin()
          .EvictReplica(Soon(), neighbour.admin().ListReplicas(Soon(), "")->front().replica_id(), true)
          .ok());
  expect_link(get(far, "cpu"), "StoreEngine/P2PIngest");
}

TEST_F(AcceptanceCriteria, Traces_EvictionForRoomIsOwnTraceLinkedToItsRequest) {
  StartAll();
  constexpr uint64_t kLarge = 12;  // chunks: 12 MiB, of which the pool holds one beside the staging buffers
  const auto small_pool = [](daemon::DaemonOptions& options) { options.pool.bytes = 32 << 20; };
  TestNode& a = cluster_.AddNode("a", small_pool);
  const client::PutResult first =
      Import(a, MakeChunkedArtifact(24, kLarge, kTestChunkBytes), {.durable = true});
  const RequestContext request = Soon();
  const TestArtifact second = MakeChunkedArtifact(25, kLarge, kTestChunkBytes);
  ASSERT_TRUE(a.client().Import(request, cluster_.WriteModel("second", second), {}).ok());
  const Trace trace = AwaitTrace(request, {"StoreEngine/DiskIngest"});
  std::optional<ReceivedSpan> evict;
  std::vector<ReceivedSpan> asked;
  ASSERT_TRUE(collector_->WaitFor(kArrival, [&] {
    asked.clear();
    for (const ReceivedSpan& span : collector_->spans()) {
      if (span.name == "StoreEngine/Evict" && span.attributes.at("tc.replica.id") == first.replica_id) {
        evict = span;
      }
    }
    if (!evict.has_value()) return false;
    for (const ReceivedSpan& span : collector_->spans()) {
      if (span.name == "GlobalStore/RequestEviction" && span.trace_id == evict->trace_id) {
        asked.push_back(span);
      }
    }
    return asked.size() == 2;
  })) << "the eviction, and the question to the global store on both of its ends, in one trace";
  EXPECT_EQ(evict->parent_span_id, "");
  EXPECT_EQ(evict->attributes.at("tc.artifact.id"), first.artifact_id);
  ASSERT_THAT(evict->links, SizeIs(1));
  EXPECT_EQ(evict->links[0].trace_id, request.trace.TraceIdHex());
  EXPECT_EQ(evict->links[0].span_id, Only(trace, "StoreEngine/DiskIngest").span_id);

  // One that is asked for is part of the request.
  const RequestContext remove = Soon();
  const std::string left = a.admin().ListReplicas(Soon(), "")->front().replica_id();
  (void)a.admin().EvictReplica(remove, left, /*force=*/false);
  AwaitTrace(remove, {"StoreDaemon/EvictReplica", "GlobalStore/RequestEviction"});
}

// A peer that lies: its chunks come from the files of the import instead, in the same trace, which says why.
TEST_F(AcceptanceCriteria, Traces_ContinueAcrossRefetchAndFallbackToDisk) {
  StartAll();
  TestNode& a = cluster_.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster_.AddNode("b", OnItsOwnHost);
  const TestArtifact artifact = MakeChunkedArtifact(3, 6, kTestChunkBytes);
  const client::PutResult at_a = Import(a, artifact);
  const client::PutResult at_b = Import(b, artifact);
  ASSERT_EQ(at_a.artifact_id, at_b.artifact_id);
  ASSERT_TRUE(b.admin().EvictReplica(Soon(), at_b.replica_id, /*force=*/true).ok());
  Damage(a, at_a.replica_id);

  RequestContext request = Soon();
  request.trace.trace_state = "vendor=1";  // begun by another program
  auto replica = b.client().Get(request, at_a.artifact_id, {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_TRUE(std::ranges::equal((*replica)->image(), artifact.image));

  const Trace trace = AwaitTrace(request, {"StoreEngine/P2PIngest", "P2P/Pull", "Disk/Read", "P2P/Serve"});
  for (const auto& [name, span] : trace) EXPECT_EQ(span.trace_state, "vendor=1") << name;
  const ReceivedSpan& ingest = Only(trace, "StoreEngine/P2PIngest");
  EXPECT_FALSE(ingest.error) << "it ended well";
  EXPECT_TRUE(Only(trace, "P2P/Verify").error);
  for (const char* name : {"refetch", "fallback"}) {
    const std::vector<ReceivedEvent> events = EventsNamed(ingest, name);
    ASSERT_THAT(events, SizeIs(1)) << name;
    EXPECT_EQ(events[0].attributes.at("tc.reason"), "bad_digest") << name;
    EXPECT_EQ(events[0].attributes.at("tc.attempt"), "2") << name;
    EXPECT_EQ(events[0].attributes.at("tc.lane"), "disk") << name;
  }
  EXPECT_EQ(EventsNamed(ingest, "fallback")[0].attributes.at("tc.previous.lane"), "loopback");
  EXPECT_TRUE(AwaitMetric("tc_p2p_fallbacks_total",
                          {{"from", "loopback"}, {"to", "disk"}, {"reason", "bad_digest"}}));
  EXPECT_TRUE(AwaitMetric("tc_p2p_refetched_chunks_total", {{"lane", "loopback"}, {"reason", "bad_digest"}}));
}

TEST_F(AcceptanceCriteria, Traces_FailedLaneIsFailedSpanAndNextLaneFollows) {
  StartAll();
  TestNode& a = cluster_.AddNode("a");
  TestNode& b = cluster_.AddNode("b");
  const client::PutResult put = Import(a, MakeChunkedArtifact(4, 5, kTestChunkBytes));
  // To the global store both are on one host; the receiver may not use the source's socket.
  ASSERT_EQ(rename(a.server().handle_socket().c_str(), (cluster_.folder() + "/hidden").c_str()), 0);
  const RequestContext request = Soon();
  ASSERT_TRUE(b.client().Get(request, put.artifact_id, {}).ok());
  const Trace trace = AwaitTrace(request, {"StoreEngine/P2PIngest", "P2P/Pull"});
  std::map<std::string, bool> failed;  // by lane
  for (auto [it, end] = trace.equal_range("P2P/Connect"); it != end; ++it) {
    failed[it->second.attributes.at("tc.lane")] = it->second.error;
  }
  EXPECT_EQ(failed, (std::map<std::string, bool>{{"local", true}, {"loopback", false}}));
  const std::vector<ReceivedEvent> fallbacks = EventsNamed(Only(trace, "StoreEngine/P2PIngest"), "fallback");
  ASSERT_THAT(fallbacks, SizeIs(1));
  EXPECT_EQ(fallbacks[0].attributes.at("tc.reason"), "not_opened");
}

}  // namespace
}  // namespace tensorcast::testing::traces_test
