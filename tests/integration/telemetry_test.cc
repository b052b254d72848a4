// Metrics, logs, configuration, and the cost of telemetry that is not used. (Traces: traces_test.cc.)
#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "daemon/sources/peer_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "otel/api/flight_recorder.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/trace_macros.h"
#include "otel/sdk/telemetry.h"
#include "rpc/channel.h"
#include "tests/integration/telemetry_fixture.h"

namespace tensorcast::testing::telemetry_test {
namespace {

using ::testing::IsEmpty;
using ::testing::IsSupersetOf;

// "tc_* metrics for memory pools, P2P throughput, load latency, and gRPC telemetry are emitted and visible
// via OTLP or Prometheus."
TEST_F(AcceptanceCriteria, Metrics_PoolsP2pLoadsAndCallsArriveOverOtlp) {
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
TEST_F(AcceptanceCriteria, Metrics_EveryMetricOfTheCatalogueIsFilled) {
  StartAll();
  constexpr uint64_t kLarge = 12;  // chunks: 12 MiB, of which the small pool holds one
  const auto small_pool = [](daemon::DaemonOptions& options) {
    OnItsOwnHost(options);
    options.pool.bytes = 32 << 20;
  };
  // Where no client attaches, which might be too slow for such tickets.
  const auto short_tickets = [](daemon::DaemonOptions& options) {
    OnItsOwnHost(options);
    options.handles.ticket_ttl = absl::Milliseconds(50);
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
  // A ticket that no client claims.
  auto peer =
      daemon::MakePeerClient([](const daemon::PeerAddress& peer) { return rpc::MakeChannel(peer.address); });
  v1::AttachReplicaRequest attach;
  attach.set_artifact_id(at_a.artifact_id);
  attach.mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
  ASSERT_TRUE(peer->AttachReplica(Soon(), a.server().addresses().front(), attach).ok());
  ASSERT_TRUE(AwaitMetric("tc_tickets_expired_total", {})) << "before this node stops";
  // More than fits, and what was asked for in vain.
  Import(b, MakeChunkedArtifact(7, kLarge, kTestChunkBytes), {.durable = true});
  Import(b, MakeChunkedArtifact(8, kLarge, kTestChunkBytes));
  EXPECT_FALSE(b.client().Get(Soon(), "no such model", {}).ok());
  // A peer with wrong bytes, and a packed file that is not one.
  const TestArtifact other = MakeChunkedArtifact(9, 6, kTestChunkBytes);
  const client::PutResult damaged = Import(a, other);
  const client::PutResult evicted = Import(b, other);
  ASSERT_TRUE(b.admin().EvictReplica(Soon(), evicted.replica_id, /*force=*/true).ok());
  Damage(a, damaged.replica_id);
  ASSERT_TRUE(b.client().Get(Soon(), damaged.artifact_id, {.attach = false}).ok());
  ASSERT_TRUE(AwaitMetric("tc_damaged_replicas_total", {{"location", "cpu"}})) << "before this node stops";
  a.Stop();
  for (const auto& file : std::filesystem::directory_iterator(cluster_.folder() + "/a/artifacts")) {
    std::filesystem::resize_file(file.path(), 100);
  }
  cluster_.StartNode(a, OnItsOwnHost);
  ASSERT_TRUE(b.admin().DeleteArtifact(Soon(), damaged.artifact_id).ok());

  std::vector<std::string> expected;
  for (const otel::MetricInfo& info : otel::MetricsCatalogue()) {
    // NCCL's need a helper process and a library, those of leaders an etcd, those of objects a store, those
    // of the fleet transfers that take a while (global_store/rollups), those of differences a second version
    // (daemon/service), and a certificate's one (rpc).
    if (absl::StartsWith(info.name, "tc_gpu_") || absl::StartsWith(info.name, "tc_nccl_") ||
        absl::StartsWith(info.name, "tc_leader_") || info.name == "tc_metadata_store_bytes" ||
        info.name == "tc_metadata_store_errors_total" || info.name == "tc_rpc_connections_refused_total" ||
        info.name == "tc_rpc_calls_refused_total" || info.name == "tc_p2p_connections_refused_total" ||
        info.name == "tc_p2p_held_back_total" || info.name == "tc_p2p_served_filling_bytes_total" ||
        info.name == "tc_p2p_reassigned_chunks_total" || info.name == "tc_equal_chunk_bytes_total" ||
        absl::StartsWith(info.name, "tc_object_") || absl::StartsWith(info.name, "tc_fleet_") ||
        absl::StartsWith(info.name, "tc_difference") || info.name == "tc_certificate_remaining_seconds") {
      continue;
    }
    expected.emplace_back(info.name);
  }
  EXPECT_TRUE(AwaitMetrics([&] {
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
TEST_F(AcceptanceCriteria, Logs_LinesOfRequestCarryItsTraceAndSpan) {
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
    ASSERT_TRUE(collector_->WaitFor(kArrival, [&] {
      for (const ReceivedLog& log : collector_->logs()) {
        if (absl::StrContains(log.body, text) && log.trace_id == request.trace.TraceIdHex()) line = log;
      }
      return line.has_value();
    })) << text;
    EXPECT_TRUE(collector_->WaitFor(kArrival, [&] {
      const Trace trace = TraceOf(request);
      return std::ranges::any_of(trace, [&](const auto& s) { return s.second.span_id == line->span_id; });
    })) << text;
  }
}

TEST_F(AcceptanceCriteria, Logs_FailedRequestIsALineOfEachProcessThatFailedIt) {
  StartAll();
  TestNode& a = cluster_.AddNode("a");
  const RequestContext request = Soon();
  EXPECT_FALSE(a.client().Get(request, "no such model", {}).ok());
  EXPECT_TRUE(AwaitLog(request, "GlobalStore/DescribeArtifact failed: NOT_FOUND"));
  EXPECT_TRUE(AwaitLog(request, "StoreDaemon/MaterializeReplica failed: NOT_FOUND"));
}

TEST_F(AcceptanceCriteria, Logs_FinishedTransferIsLoggedAtBothEndsAndGlobalStore) {
  StartAll();
  TestNode& a = cluster_.AddNode("a");
  TestNode& far = cluster_.AddNode("far", OnItsOwnHost);
  TestNode& neighbour = cluster_.AddNode("neighbour");
  const client::PutResult put = Import(a, MakeChunkedArtifact(26, 5, kTestChunkBytes));
  for (TestNode* node : {&far, &neighbour}) {
    const RequestContext request = Soon();
    ASSERT_TRUE(node->client().Get(request, put.artifact_id, {.attach = false}).ok());
    const std::string lane = node == &far ? "loopback" : "local";
    const std::vector<std::string> texts = {"to cpu: 5242880 of 5242880 bytes in ", ", " + lane + " from ",
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
  const int calls = collector_->calls();
  EXPECT_EQ(get(OtelConfig("enabled: true exporter: 'none'")), 0);
  EXPECT_EQ(get(OtelConfig("enabled: false")), 0);
  EXPECT_EQ(collector_->calls(), calls) << "nothing at all was sent";
}

// What no sampler chose is exported all the same when its transfer was slow.
TEST_F(AcceptanceCriteria, Traces_SlowTransferIsExportedThoughUnsampled) {
  Start(OtelConfig("enabled: true sampling_ratio: 0.0"));
  const otel::FlightRecorder recorder;
  const auto all_are_slow = [](daemon::DaemonOptions& options) {
    OnItsOwnHost(options);
    options.slow_transfer = absl::ZeroDuration();
  };
  TestNode& a = cluster_.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster_.AddNode("b", all_are_slow);
  const client::PutResult put = Import(a, MakeChunkedArtifact(13, 3, kTestChunkBytes));
  const RequestContext request = Soon();
  ASSERT_TRUE(b.client().Get(request, put.artifact_id, {}).ok());
  const Trace trace =
      AwaitTrace(request, {"StoreEngine/P2PIngest", "P2P/Pull", "P2P/Serve",
                           "GlobalStore/RequestReplicaTransport", "StoreDaemon/MaterializeReplica"});
  EXPECT_EQ(trace.count("StoreEngine/P2PIngest"), 1) << "the slices of three processes have it once";
}

TEST_F(AcceptanceCriteria, Conservation_PullBetweenNodesIsComparedAndHolds) {
  StartAll();
  TestNode& a = cluster_.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster_.AddNode("b", OnItsOwnHost);
  const client::PutResult put = Import(a, MakeChunkedArtifact(14, 9, kTestChunkBytes));
  ASSERT_TRUE(b.client().Get(Soon(), put.artifact_id, {}).ok());
  EXPECT_TRUE(AwaitMetric("tc_conservation_checks_total", {{"what", "pull"}, {"outcome", "ok"}}, 1));
  const auto status = b.admin().GetStatus(Soon());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->conservation().pulls_compared(), 1);
  EXPECT_EQ(status->conservation().violations(), 0) << status->conservation().last_violation();
}

// "Client SDK default: OTel is disabled unless explicitly enabled."
TEST_F(Compatibility, ClientByDefault_SendsNoTelemetry) {
  Start({});
  EXPECT_FALSE(telemetry_->enabled());
  EXPECT_FALSE(otel::IsTelemetryEnabled());
  TestNode& a = cluster_.AddNode("a");
  const client::PutResult put = Import(a, MakeChunkedArtifact(13, 3, kTestChunkBytes));
  EXPECT_TRUE(a.client().Get(Soon(), put.artifact_id, {}).ok());
  telemetry_->Shutdown();
  EXPECT_EQ(collector_->calls(), 0);
}

// The example of client/README.md.
TEST_F(Compatibility, ClientWithTelemetry_SendsItsSpansBeforeItEnds) {
  TestNode& a = cluster_.AddNode("a");
  const client::PutResult put = Import(a, MakeChunkedArtifact(27, 3, kTestChunkBytes));
  const RequestContext request = Soon();
  v1::OtelConfig config = OtelConfig("enabled: true");
  config.set_endpoint(collector_->endpoint());
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
TEST_F(Compatibility, NoExporterOrSamplingZero_SpansAreNotRecorded) {
  Start(OtelConfig("enabled: true exporter: 'none'"));
  EXPECT_FALSE(telemetry_->enabled());
  EXPECT_FALSE(otel::Span("A/B").recording());
  telemetry_->Shutdown();
  Start(OtelConfig("enabled: true sampling_ratio: 0.0"));
  EXPECT_FALSE(otel::Span("A/B").recording());
}

// "Existing SC_TRACE_* macro semantics are preserved via the bridge."
TEST_F(Compatibility, TraceMacroScope_EndsWithItsBlock) {
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
TEST_F(Compatibility, TraceparentOfCaller_IsContinuedAndUnsampledStaysUnsampled) {
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
}  // namespace tensorcast::testing::telemetry_test
