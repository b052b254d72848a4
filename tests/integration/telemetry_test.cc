// Telemetry of a whole cluster in one process, through the OpenTelemetry SDK to a real OTLP receiver. The
// acceptance criteria and the compatibility lines of the observability design have a test each, named after
// them; the same with a process a role is `tensorcast otel-smoke`.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "base/steady_time.h"
#include "daemon/sources/peer_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/trace_macros.h"
#include "otel/sdk/telemetry.h"
#include "otel/sdk/testing/config.h"
#include "otel/sdk/testing/otlp_receiver.h"
#include "rpc/channel.h"
#include "tests/integration/test_cluster.h"

namespace tensorcast::testing {
namespace {

using otel::testing::OtelConfig;
using otel::testing::OtlpReceiver;
using otel::testing::ReceivedEvent;
using otel::testing::ReceivedLog;
using otel::testing::ReceivedMetric;
using otel::testing::ReceivedSpan;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;

constexpr absl::Duration kArrival = absl::Seconds(30);  // only a hang takes so long

// The spans of one trace, by name.
using Trace = std::multimap<std::string, ReceivedSpan>;

std::set<std::string> NamesOf(const Trace& trace) {
  std::set<std::string> names;
  for (const auto& [name, span] : trace) names.insert(name);
  return names;
}

const ReceivedSpan& Only(const Trace& trace, const std::string& name) {
  EXPECT_EQ(trace.count(name), 1) << name;
  return trace.find(name)->second;
}

std::vector<ReceivedEvent> EventsNamed(const ReceivedSpan& span, std::string_view name) {
  std::vector<ReceivedEvent> events;
  std::ranges::copy_if(span.events, std::back_inserter(events),
                       [&](const auto& e) { return e.name == name; });
  return events;
}

// Flips a byte of a replica in the daemon's memory, behind everybody's back.
void Damage(TestNode& node, const std::string& replica_id) {
  auto lease = node.server().engine().LeaseReplica(replica_id);
  ASSERT_TRUE(lease.ok()) << lease.status();
  HostSpan byte = (*lease)->memory().host->Spans(kTestChunkBytes, 1).front();
  byte[0] ^= std::byte{1};
}

class TelemetryFixture : public ::testing::Test {
 protected:
  TelemetryFixture() : receiver_(*OtlpReceiver::Start()) {}

  void Start(v1::OtelConfig config) {
    config.set_endpoint(receiver_->endpoint());
    config.set_batch_interval("20ms");
    config.set_metric_interval("50ms");
    auto telemetry = otel::InitTelemetry(config, "daemon");
    ASSERT_TRUE(telemetry.ok()) << telemetry.status();
    telemetry_ = *std::move(telemetry);
  }
  void StartAll() { Start(OtelConfig("enabled: true queue_size: 65536")); }

  client::PutResult Import(TestNode& node, const TestArtifact& artifact, client::PutOptions options = {}) {
    options.chunk_bytes = artifact.layout.chunk_bytes;
    auto put = node.client().Import(Soon(), cluster_.WriteModel("model", artifact), options);
    EXPECT_TRUE(put.ok()) << put.status();
    return put.ok() ? *put : client::PutResult{};
  }

  Trace TraceOf(const RequestContext& context) const {
    Trace trace;
    for (const ReceivedSpan& span : receiver_->spans()) {
      if (span.trace_id == context.trace.TraceIdHex()) trace.emplace(span.name, span);
    }
    return trace;
  }
  // The request's trace once it is whole: these spans are in it, and of every span in it the parent (a call
  // that is answered ends before the one that made it, so its span may come first).
  Trace AwaitTrace(const RequestContext& context, const std::vector<std::string>& names) const {
    Trace trace;
    EXPECT_TRUE(receiver_->WaitFor(kArrival, [&] {
      trace = TraceOf(context);
      return IsWhole(trace, context) &&
             std::ranges::all_of(names, [&](const std::string& name) { return trace.contains(name); });
    })) << ::testing::PrintToString(NamesOf(trace));
    return trace;
  }
  static bool IsWhole(const Trace& trace, const RequestContext& context) {
    std::set<std::string> parents = {"", context.trace.SpanIdHex()};
    for (const auto& [name, span] : trace) parents.insert(span.span_id);
    return std::ranges::all_of(trace,
                               [&](const auto& s) { return parents.contains(s.second.parent_span_id); });
  }

  // Whether a log line with this text names the request's trace.
  bool AwaitLog(const RequestContext& context, std::string_view text) const {
    return receiver_->WaitFor(kArrival, [&] {
      return std::ranges::any_of(receiver_->logs(), [&](const ReceivedLog& log) {
        return absl::StrContains(log.body, text) && log.trace_id == context.trace.TraceIdHex();
      });
    });
  }

  std::set<std::string> MetricNames() const {
    std::set<std::string> names;
    for (const ReceivedMetric& metric : receiver_->metrics()) names.insert(metric.name);
    return names;
  }
  // The latest value of a series; the sum over those that have these labels among theirs.
  double Metric(const std::string& name, const otel::testing::StringMap& labels) const {
    double sum = 0;
    for (const ReceivedMetric& metric : receiver_->metrics()) {
      const bool matches = std::ranges::all_of(labels, [&](const auto& label) {
        const auto found = metric.labels.find(label.first);
        return found != metric.labels.end() && found->second == label.second;
      });
      if (metric.name == name && matches) sum += metric.value;
    }
    return sum;
  }
  ::testing::AssertionResult AwaitMetric(const std::string& name, const otel::testing::StringMap& labels,
                                         double at_least = 1) const {
    if (receiver_->WaitFor(kArrival, [&] { return Metric(name, labels) >= at_least; })) {
      return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure()
           << name << " " << ::testing::PrintToString(labels) << " is " << Metric(name, labels);
  }

  std::unique_ptr<OtlpReceiver> receiver_;
  std::unique_ptr<otel::Telemetry> telemetry_;  // ends after the cluster, with what that had to say
  TestCluster cluster_;
};

class AcceptanceCriteria : public TelemetryFixture {};
class Compatibility : public TelemetryFixture {};

// "A single request produces a coherent trace across Global Store, Daemon, and Core, including P2P stages
// with appropriate child relationships or links."
TEST_F(AcceptanceCriteria, Traces_ASingleRequestIsOneCoherentTraceDownToTheStages) {
  StartAll();
  TestNode& a = cluster_.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster_.AddNode("b", OnItsOwnHost);
  const client::PutResult put = Import(a, MakeChunkedArtifact(1, 9, kTestChunkBytes), {.key = "model"});
  const RequestContext request = Soon();
  ASSERT_TRUE(b.client().Get(request, "model", {.location = "gpu:0", .attach = false}).ok());

  const Trace trace =
      AwaitTrace(request, {"Client/Get", "StoreDaemon/MaterializeReplica", "GlobalStore/ResolveKey",
                           "GlobalStore/RequestReplicaTransport", "P2P/Connect", "StoreDaemon/OpenPull",
                           "StoreEngine/P2PIngest", "P2P/Pull", "P2P/Verify", "Device/Copy", "P2P/Serve"});
  std::map<std::string, std::string> name_of;
  for (const auto& [name, span] : trace) name_of[span.span_id] = name;
  for (const auto& [name, span] : trace) {
    EXPECT_EQ(span.parent_span_id.empty(), name == "Client/Get") << name << ": one root";
    EXPECT_TRUE(span.parent_span_id.empty() || name_of.contains(span.parent_span_id))
        << name << " is an orphan";
    EXPECT_FALSE(span.error) << name << ": " << span.status_message;
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
      << "the source's work is linked to the pull that it serves, which is no ancestor of it";
  EXPECT_EQ(Only(trace, "StoreEngine/P2PIngest").attributes.at("tc.artifact.id"), put.artifact_id);
}

TEST_F(AcceptanceCriteria, Traces_TheServingOfALocalPullIsLinkedToItsReader) {
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
TEST_F(AcceptanceCriteria, Traces_TheEndOfATransferStaysInItsTrace) {
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
    // The span of the one who calls may come after that of the one who answers.
    EXPECT_TRUE(receiver_->WaitFor(kArrival, [&] {
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

TEST_F(AcceptanceCriteria, Traces_AGetThatJoinsAnIngestIsLinkedToIt) {
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
TEST_F(AcceptanceCriteria, Traces_AnIngestIsLinkedToTheOneThatMadeItsSource) {
  StartAll();
  TestNode& a = cluster_.AddNode("a");
  TestNode& neighbour = cluster_.AddNode("neighbour");
  TestNode& far = cluster_.AddNode("far", OnItsOwnHost);
  const RequestContext import = Soon();
  const TestArtifact artifact = MakeChunkedArtifact(23, 5, kTestChunkBytes);
  auto put = a.client().Import(import, cluster_.WriteModel("model", artifact),
                               {.chunk_bytes = artifact.layout.chunk_bytes});
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

TEST_F(AcceptanceCriteria, Traces_AnEvictionIsATraceOfItsOwnLinkedToTheRequestThatNeededRoom) {
  StartAll();
  constexpr uint64_t kLarge = 192;  // chunks: 12 MiB, of which the pool holds one beside the staging buffers
  const auto small_pool = [](daemon::DaemonOptions& options) { options.host_pool_bytes = 32 << 20; };
  TestNode& a = cluster_.AddNode("a", small_pool);
  const client::PutResult first =
      Import(a, MakeChunkedArtifact(24, kLarge, kTestChunkBytes), {.durable = true});
  const RequestContext request = Soon();
  const TestArtifact second = MakeChunkedArtifact(25, kLarge, kTestChunkBytes);
  ASSERT_TRUE(
      a.client()
          .Import(request, cluster_.WriteModel("second", second), {.chunk_bytes = second.layout.chunk_bytes})
          .ok());
  const Trace trace = AwaitTrace(request, {"StoreEngine/DiskIngest"});
  std::optional<ReceivedSpan> evict;
  std::vector<ReceivedSpan> asked;
  ASSERT_TRUE(receiver_->WaitFor(kArrival, [&] {
    asked.clear();
    for (const ReceivedSpan& span : receiver_->spans()) {
      if (span.name == "StoreEngine/Evict" && span.attributes.at("tc.replica.id") == first.replica_id) {
        evict = span;
      }
    }
    if (!evict.has_value()) return false;
    for (const ReceivedSpan& span : receiver_->spans()) {
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
TEST_F(AcceptanceCriteria, Traces_SurviveARefetchAndAFallbackFromPeerToDisk) {
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

TEST_F(AcceptanceCriteria, Traces_ALaneThatCannotBeOpenedIsASpanThatFailedAndTheNextFollows) {
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

// "tc_* metrics for memory pools, P2P throughput, load latency, and gRPC telemetry are emitted and visible
// via OTLP or Prometheus."
TEST_F(AcceptanceCriteria, Metrics_PoolsP2pLoadsAndCallsAreVisibleOverOtlp) {
  StartAll();
  TestNode& a = cluster_.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster_.AddNode("b", OnItsOwnHost);
  const TestArtifact artifact = MakeChunkedArtifact(5, 9, kTestChunkBytes);
  const client::PutResult put = Import(a, artifact);
  ASSERT_TRUE(b.client().Get(Soon(), put.artifact_id, {}).ok());
  const double bytes = static_cast<double>(artifact.image.size());
  EXPECT_TRUE(AwaitMetric("tc_pool_used_bytes", {{"location", "cpu"}}, bytes));
  EXPECT_TRUE(AwaitMetric("tc_p2p_bytes_total", {{"lane", "loopback"}, {"direction", "receive"}}, bytes));
  EXPECT_TRUE(AwaitMetric("tc_p2p_bytes_total", {{"lane", "loopback"}, {"direction", "serve"}}, bytes));
  EXPECT_TRUE(AwaitMetric("tc_p2p_throughput_bytes_per_second", {{"direction", "receive"}}));
  EXPECT_TRUE(AwaitMetric("tc_artifact_loads_total", {{"source", "remote"}, {"outcome", "ok"}}));
  EXPECT_TRUE(
      AwaitMetric("tc_artifact_load_bytes_total", {{"source", "remote"}, {"location", "cpu"}}, bytes));
  for (const char* side : {"client", "server"}) {
    EXPECT_TRUE(AwaitMetric("tc_rpc_requests_total",
                            {{"side", side}, {"method", "StoreDaemon/MaterializeReplica"}, {"code", "OK"}}));
  }
}

// Nothing in the catalogue is a promise: a run through all that a node does fills every metric. Left out are
// those of GPUs (they come from NVML: otel/sdk), of a metadata store that fails (global_store/metadata), and
// of connections past a server's limit (rpc).
TEST_F(AcceptanceCriteria, Metrics_EveryOneOfTheCatalogueIsFilled) {
  StartAll();
  constexpr uint64_t kLarge = 192;  // chunks: 12 MiB, of which the small pool holds one
  const auto small_pool = [](daemon::DaemonOptions& options) {
    OnItsOwnHost(options);
    options.host_pool_bytes = 32 << 20;
  };
  // Where no client attaches, which might be too slow for such tickets.
  const auto short_tickets = [](daemon::DaemonOptions& options) {
    OnItsOwnHost(options);
    options.ticket_life = absl::Milliseconds(50);
  };
  TestNode& a = cluster_.AddNode("a", short_tickets);
  TestNode& b = cluster_.AddNode("b", small_pool);
  const TestArtifact artifact = MakeChunkedArtifact(6, 6, kTestChunkBytes);
  // A put, kept on disk; then from there.
  const client::PutResult at_a = Import(a, artifact, {.key = "model", .durable = true});
  ASSERT_TRUE(a.admin().EvictReplica(Soon(), at_a.replica_id, /*force=*/true).ok());
  ASSERT_TRUE(a.client().Get(Soon(), "model", {.attach = false}).ok());
  ASSERT_TRUE(a.client().Get(Soon(), "model", {.location = "gpu:0", .attach = false}).ok());
  // Remote, and again; a peer that lies, so that its chunks are fetched again, from the files here.
  const client::PutResult at_b = Import(b, artifact);
  ASSERT_TRUE(b.admin().EvictReplica(Soon(), at_b.replica_id, /*force=*/true).ok());
  ASSERT_TRUE(b.client().Get(Soon(), "model", {}).ok());
  ASSERT_TRUE(b.client().Get(Soon(), "model", {}).ok());
  // A ticket that nobody claims.
  auto peer = daemon::MakePeerClient([](const std::string& address) { return rpc::MakeChannel(address); });
  v1::AttachReplicaRequest attach;
  attach.set_artifact_id(at_a.artifact_id);
  attach.mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
  v1::AttachReplicaResponse attached;
  ASSERT_TRUE(peer->AttachReplica(Soon(), a.server().addresses().front(), attach, &attached).ok());
  ASSERT_TRUE(AwaitMetric("tc_tickets_expired_total", {})) << "before this node stops";
  // More than fits, and what was asked for in vain.
  Import(b, MakeChunkedArtifact(7, kLarge, kTestChunkBytes), {.durable = true});
  Import(b, MakeChunkedArtifact(8, kLarge, kTestChunkBytes));
  EXPECT_FALSE(b.client().Get(Soon(), "no such model", {}).ok());
  // A peer whose bytes are wrong, and a packed file that is none.
  const TestArtifact other = MakeChunkedArtifact(9, 6, kTestChunkBytes);
  const client::PutResult damaged = Import(a, other);
  const client::PutResult evicted = Import(b, other);
  ASSERT_TRUE(b.admin().EvictReplica(Soon(), evicted.replica_id, /*force=*/true).ok());
  Damage(a, damaged.replica_id);
  ASSERT_TRUE(b.client().Get(Soon(), damaged.artifact_id, {.attach = false}).ok());
  a.Stop();
  for (const auto& file : std::filesystem::directory_iterator(cluster_.folder() + "/a/artifacts")) {
    std::filesystem::resize_file(file.path(), 100);
  }
  cluster_.StartNode(a, OnItsOwnHost);
  ASSERT_TRUE(b.admin().DeleteArtifact(Soon(), damaged.artifact_id, /*only_if_unkeyed=*/false).ok());

  std::vector<std::string> expected;
  for (const otel::MetricInfo& info : otel::MetricsCatalogue()) {
    if (absl::StartsWith(info.name, "tc_gpu_") || info.name == "tc_metadata_store_errors_total" ||
        info.name == "tc_rpc_connections_refused_total") {
      continue;
    }
    expected.emplace_back(info.name);
  }
  EXPECT_TRUE(receiver_->WaitFor(kArrival, [&] {
    const std::set<std::string> arrived = MetricNames();
    return std::ranges::all_of(expected, [&](const std::string& name) { return arrived.contains(name); });
  }));
  EXPECT_THAT(MetricNames(), IsSupersetOf(expected));
  for (const char* reason : {"space", "request", "deleted"}) {
    EXPECT_TRUE(AwaitMetric("tc_pool_evictions_total", {{"reason", reason}}));
  }
  EXPECT_TRUE(AwaitMetric("tc_disk_read_bytes_total", {{"kind", "packed"}}, 6 * kTestChunkBytes));
  EXPECT_TRUE(AwaitMetric("tc_disk_read_bytes_total", {{"kind", "origin"}}, 6 * kTestChunkBytes));
  EXPECT_TRUE(AwaitMetric("tc_disk_errors_total", {{"operation", "scan"}}));
  EXPECT_TRUE(AwaitMetric("tc_disk_damaged_files", {}));
  const auto status = a.admin().GetStatus(Soon());
  ASSERT_TRUE(status.ok()) << status.status();
  ASSERT_EQ(status->damaged_files_size(), 1);
  EXPECT_TRUE(absl::StrContains(status->damaged_files(0).path(), "/a/artifacts/"));
  EXPECT_FALSE(status->damaged_files(0).error().message().empty());
  EXPECT_TRUE(AwaitMetric("tc_transfers_created_total", {{"location", "gpu"}}));
}

// "Log records ... include trace_id/span_id for correlation."
TEST_F(AcceptanceCriteria, Logs_LinesOfARequestNameItsTraceAndSpan) {
  StartAll();
  TestNode& a = cluster_.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster_.AddNode("b", OnItsOwnHost);
  const TestArtifact artifact = MakeChunkedArtifact(11, 6, kTestChunkBytes);
  const client::PutResult put = Import(a, artifact);
  Import(b, artifact);
  ASSERT_TRUE(
      b.admin().EvictReplica(Soon(), b.admin().ListReplicas(Soon(), "")->front().replica_id(), true).ok());
  Damage(a, put.replica_id);
  const RequestContext request = Soon();
  ASSERT_TRUE(b.client().Get(request, put.artifact_id, {}).ok());
  // One of the call's own thread, and one of the ingest's.
  for (const char* text : {" is ready: ", " is given up as corrupt"}) {
    std::optional<ReceivedLog> line;
    ASSERT_TRUE(receiver_->WaitFor(kArrival, [&] {
      for (const ReceivedLog& log : receiver_->logs()) {
        if (absl::StrContains(log.body, text) && log.trace_id == request.trace.TraceIdHex()) line = log;
      }
      return line.has_value();
    })) << text;
    EXPECT_TRUE(receiver_->WaitFor(kArrival, [&] {
      const Trace trace = TraceOf(request);
      return std::ranges::any_of(trace, [&](const auto& s) { return s.second.span_id == line->span_id; });
    })) << text;
  }
}

TEST_F(AcceptanceCriteria, Logs_ARequestThatFailsIsALineOnEachProcessThatFailedIt) {
  StartAll();
  TestNode& a = cluster_.AddNode("a");
  const RequestContext request = Soon();
  EXPECT_FALSE(a.client().Get(request, "no such model", {}).ok());
  EXPECT_TRUE(AwaitLog(request, "GlobalStore/ResolveKey failed: NOT_FOUND"));
  EXPECT_TRUE(AwaitLog(request, "StoreDaemon/MaterializeReplica failed: NOT_FOUND"));
}

TEST_F(AcceptanceCriteria, Logs_ATransferThatEndsIsALineOnBothOfItsEndsAndInTheGlobalStore) {
  StartAll();
  TestNode& a = cluster_.AddNode("a");
  TestNode& far = cluster_.AddNode("far", OnItsOwnHost);
  TestNode& neighbour = cluster_.AddNode("neighbour");
  const client::PutResult put = Import(a, MakeChunkedArtifact(26, 5, kTestChunkBytes));
  for (TestNode* node : {&far, &neighbour}) {
    const RequestContext request = Soon();
    ASSERT_TRUE(node->client().Get(request, put.artifact_id, {.attach = false}).ok());
    const std::string lane = node == &far ? "loopback" : "local";
    const std::vector<std::string> texts = {"to cpu: 327680 of 327680 bytes in ", ", " + lane + " from ",
                                            "over " + lane + ": ", "over " + lane + " succeeded"};
    for (const std::string& text : texts) EXPECT_TRUE(AwaitLog(request, text)) << text;
  }
}

// "Toggling sampling and exporters affects cost and signal export without code changes."
TEST_F(AcceptanceCriteria, Config_SamplingAndExportersDecideWhatIsSent) {
  TestNode& a = cluster_.AddNode("a");
  const client::PutResult put = Import(a, MakeChunkedArtifact(12, 3, kTestChunkBytes));
  const auto get = [&](const v1::OtelConfig& config) {
    Start(config);
    const RequestContext request = Soon();
    EXPECT_TRUE(a.client().Get(request, put.artifact_id, {}).ok());
    telemetry_->Shutdown();
    return TraceOf(request).size();
  };
  EXPECT_GT(get(OtelConfig("enabled: true")), 0);
  EXPECT_EQ(get(OtelConfig("enabled: true sampling_ratio: 0.0")), 0) << "metrics went, spans did not";
  EXPECT_TRUE(MetricNames().contains("tc_rpc_requests_total"));
  EXPECT_EQ(get(OtelConfig("enabled: true traces: false")), 0);
  const int calls = receiver_->calls();
  EXPECT_EQ(get(OtelConfig("enabled: true exporter: 'none'")), 0);
  EXPECT_EQ(get(OtelConfig("enabled: false")), 0);
  EXPECT_EQ(receiver_->calls(), calls) << "nothing at all was sent";
}

// "Client SDK default: OTel is disabled unless explicitly enabled."
TEST_F(Compatibility, AClientSaysNothingUnlessAskedTo) {
  Start({});
  EXPECT_FALSE(telemetry_->enabled());
  EXPECT_FALSE(otel::IsTelemetryEnabled());
  TestNode& a = cluster_.AddNode("a");
  const client::PutResult put = Import(a, MakeChunkedArtifact(13, 3, kTestChunkBytes));
  EXPECT_TRUE(a.client().Get(Soon(), put.artifact_id, {}).ok());
  telemetry_->Shutdown();
  EXPECT_EQ(receiver_->calls(), 0);
}

// The example of client/README.md.
TEST_F(Compatibility, AClientThatIsGivenTelemetrySaysWhatItDoesToItsEnd) {
  TestNode& a = cluster_.AddNode("a");
  const client::PutResult put = Import(a, MakeChunkedArtifact(27, 3, kTestChunkBytes));
  const RequestContext request = Soon();
  v1::OtelConfig config = OtelConfig("enabled: true");
  config.set_endpoint(receiver_->endpoint());
  auto telemetry = otel::InitTelemetry(config, "client");
  ASSERT_TRUE(telemetry.ok()) << telemetry.status();
  auto client =
      client::Client::Connect({.daemon = a.server().addresses().front(), .telemetry = *std::move(telemetry)});
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE((*client)->Get(request, put.artifact_id, {}).ok());
  EXPECT_TRUE(otel::IsTelemetryEnabled());
  client->reset();
  EXPECT_FALSE(otel::IsTelemetryEnabled()) << "which sent what there was";
  const ReceivedSpan get = Only(TraceOf(request), "Client/Get");
  EXPECT_EQ(get.resource.at("service.name"), "tensorcast-client");
}

// "Default behavior is no-op if exporters are disabled or sampling=0."
TEST_F(Compatibility, WithoutAnExporterOrSamplesSpansAreNotRecorded) {
  Start(OtelConfig("enabled: true exporter: 'none'"));
  EXPECT_FALSE(telemetry_->enabled());
  EXPECT_FALSE(otel::Span("A/B").recording());
  telemetry_->Shutdown();
  Start(OtelConfig("enabled: true sampling_ratio: 0.0"));
  EXPECT_FALSE(otel::Span("A/B").recording());
}

// "Existing SC_TRACE_* macro semantics are preserved via the bridge."
TEST_F(Compatibility, MacroScopesLastExactlyAsLongAsTheirBlocks) {
  StartAll();
  const RequestContext request = Soon();
  {
    SC_TRACE_SCOPE_OF(request, "Test/Outer");
    {
      SC_TRACE_SCOPE("Test/First");
      SC_TRACE_ATTRIBUTE(otel::attr::kChunks, 3);
    }
    SC_TRACE_SCOPE("Test/Second");
    SC_TRACE_ERROR(absl::DataLossError("lost"));
  }
  const Trace trace = AwaitTrace(request, {"Test/Outer", "Test/First", "Test/Second"});
  const ReceivedSpan& outer = Only(trace, "Test/Outer");
  const ReceivedSpan& first = Only(trace, "Test/First");
  const ReceivedSpan& second = Only(trace, "Test/Second");
  EXPECT_EQ(first.parent_span_id, outer.span_id);
  EXPECT_EQ(second.parent_span_id, outer.span_id) << "the first block was over";
  EXPECT_EQ(first.attributes.at("tc.chunks"), "3");
  EXPECT_TRUE(second.error);
}

// "Cross-language propagation uses W3C Trace Context; legacy code without OTel remains functional."
TEST_F(Compatibility, ATraceOfAnotherProgramGoesOnAndOneThatWantsNoneIsNotForced) {
  StartAll();
  TestNode& a = cluster_.AddNode("a");
  const client::PutResult put = Import(a, MakeChunkedArtifact(14, 3, kTestChunkBytes));
  RequestContext request = Soon();
  request.trace =
      *TraceContext::FromTraceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1");
  ASSERT_TRUE(a.client().Get(request, put.artifact_id, {}).ok());
  const Trace trace = AwaitTrace(request, {"Client/Get", "StoreDaemon/MaterializeReplica"});
  EXPECT_EQ(Only(trace, "Client/Get").parent_span_id, "b7ad6b7169203331");
  for (const auto& [name, span] : trace) EXPECT_EQ(span.trace_state, "vendor=1") << name;

  RequestContext unsampled = Soon();
  unsampled.trace = *TraceContext::FromTraceparent("00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
  ASSERT_TRUE(a.client().Get(unsampled, put.artifact_id, {}).ok());
  RequestContext without = Soon();
  without.trace = TraceContext();  // a caller that knows nothing of traces
  ASSERT_TRUE(a.client().Get(without, put.artifact_id, {}).ok());
  telemetry_->Shutdown();
  EXPECT_THAT(TraceOf(unsampled), IsEmpty());
}

}  // namespace
}  // namespace tensorcast::testing
