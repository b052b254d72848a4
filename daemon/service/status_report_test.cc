#include "daemon/service/status_report.h"

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "base/posix/process_limits.h"
#include "base/testing/eventually.h"
#include "daemon/service/service_fixture.h"
#include "otel/api/exporter_states.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon::status_report_test {
namespace {

using ::testing::HasSubstr;

class StatusReportTest : public ServiceTest {};

TEST_F(StatusReportTest, Status_ReportsNodeAndGlobalStoreLink) {
  node.SetAddress("10.0.0.1:7001");
  const v1::GetStatusResponse report = status->Report();
  EXPECT_EQ(report.node().node_id(), "me");
  EXPECT_EQ(report.node().grpc_address(), "10.0.0.1:7001");
  EXPECT_FALSE(report.node().draining());
  EXPECT_EQ(report.global_store(), "the store");
  EXPECT_FALSE(report.global_store_reachable()) << "the link was never started";
  EXPECT_THAT(report.global_store_error(), HasSubstr("has not answered yet"));
  node.Drain();
  EXPECT_TRUE(status->Report().node().draining());
}

TEST_F(StatusReportTest, Status_ListsHostPoolAndDevicePools) {
  const v1::GetStatusResponse report = status->Report();
  ASSERT_EQ(report.pools_size(), 2);
  EXPECT_EQ(report.pools(0).location().kind(), v1::LOCATION_KIND_CPU);
  EXPECT_EQ(report.pools(0).capacity_bytes(), pool->stats().capacity_bytes);
  EXPECT_EQ(report.pools(1).location().kind(), v1::LOCATION_KIND_GPU);
  EXPECT_EQ(report.pools(1).location().device_uuid(), devices->devices()[0].uuid);
}

TEST_F(StatusReportTest, Status_ReportsWhyWideBroadcastsAreOff) {
  EXPECT_EQ(status->Report().node().nccl_version(), "");
  EXPECT_THAT(status->Report().node().no_nccl(), HasSubstr("security.trusted_fabric"));
}

TEST_F(StatusReportTest, Status_ListsDevices) {
  const v1::GetStatusResponse report = status->Report();
  EXPECT_EQ(report.node().unhealthy_devices_size(), 0);
  ASSERT_EQ(report.devices_size(), 1);
  EXPECT_EQ(report.devices(0).unhealthy(), "");
  EXPECT_FALSE(report.devices(0).has_numa_node()) << "it is not a PCI device";
}

TEST_F(StatusReportTest, Status_ReportsHostFacts) {
  const v1::HostFacts host = status->Report().host();
  EXPECT_LT(absl::AbsDuration(rpc::FromProto(host.clock()) - absl::Now()), absl::Minutes(1));
  EXPECT_EQ(host.descriptors_max(), static_cast<uint64_t>(DescriptorLimit()));
  EXPECT_GT(host.descriptors_open(), 0u);
  EXPECT_GT(host.memory_bytes(), host.available_memory_bytes());
  EXPECT_GT(host.available_memory_bytes(), 0u);
  EXPECT_GT(host.cpus(), 0u);
  EXPECT_EQ(host.exporters_size(), 0) << "telemetry is off";
}

TEST_F(StatusReportTest, Status_ListsExporters) {
  otel::InstallExporterStates([] {
    return std::vector<otel::ExporterState>{{.signal = "traces",
                                             .endpoint = "http://c:4317",
                                             .error = "re\xff"
                                                      "fused",
                                             .dropped = 7}};
  });
  const v1::HostFacts host = status->Report().host();
  otel::InstallExporterStates(nullptr);
  ASSERT_EQ(host.exporters_size(), 1);
  EXPECT_EQ(host.exporters(0).signal(), "traces");
  EXPECT_EQ(host.exporters(0).endpoint(), "http://c:4317");
  EXPECT_EQ(host.exporters(0).error(), "re?fused") << "what a peer said is not always UTF-8";
  EXPECT_EQ(host.exporters(0).dropped(), 7u);
}

TEST_F(StatusReportTest, PinnedBytes_CountLeasedAndPinnedGranules) {
  const std::string replica_id = MakeReplica();
  EXPECT_EQ(status->Report().replicas(), 1);
  EXPECT_EQ(status->Report().pools(0).pinned_bytes(), 0);
  {
    const auto lease = engine->LeaseReplica(replica_id);
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_EQ(status->Report().leases(), 1);
    EXPECT_EQ(status->Report().pools(0).pinned_bytes(), 2 * kGranuleBytes);
  }
  EXPECT_EQ(status->Report().pools(0).pinned_bytes(), 0);
  ASSERT_TRUE(engine->SetPinned(replica_id, true).ok());
  EXPECT_EQ(status->Report().pools(0).pinned_bytes(), 2 * kGranuleBytes);
}

TEST_F(StatusReportTest, Status_CountsPartialReplicasAndTheirBytes) {
  EXPECT_EQ(status->Report().pools(0).partial_replicas(), 0);
  auto pending = engine->Ingest(context, {.manifest = artifact.manifest,
                                          .location = {},
                                          .sources = std::make_shared<testing::ScriptedProvider>(std::vector{
                                              testing::MakeControl(artifact.image, testing::SourceScript{})}),
                                          .chunks = std::vector<uint32_t>{0}});
  ASSERT_TRUE(pending.ok()) << pending.status();
  const auto lease = (*pending)->Wait(context);
  ASSERT_TRUE(lease.ok()) << lease.status();
  const v1::GetStatusResponse report = status->Report();
  EXPECT_EQ(report.replicas(), 1);
  EXPECT_EQ(report.pools(0).partial_replicas(), 1);
  EXPECT_EQ(report.pools(0).partial_bytes(), kGranuleBytes) << "what it has, and not the whole image";
  EXPECT_EQ(report.pools(0).pinned_bytes(), kGranuleBytes);
}

TEST_F(StatusReportTest, Status_ListsRecentTransfersAndSumsBytesByLane) {
  TransferReport report{.transfer_id = "one"};
  report.stages = {{.stage = Stage::kFetch, .source = {.lane = "ucx"}, .bytes = 5}};
  report.stages[0].source.grant_id = "grant";
  transfers.Add(report);
  report.transfer_id = "two";
  transfers.Add(report);
  const v1::GetStatusResponse shown = status->Report();
  ASSERT_EQ(shown.recent_transfers_size(), 2);
  EXPECT_EQ(shown.recent_transfers(0).transfer_id(), "two") << "the newest first";
  ASSERT_EQ(shown.lanes_size(), 1);
  EXPECT_EQ(shown.lanes(0).lane(), "ucx");
  EXPECT_EQ(shown.lanes(0).bytes_received(), 10);
}

TEST_F(StatusReportTest, FinishedTransfer_IsAmongRecentTransfers) {
  MakeReplica();
  // Told on the engine's thread, a moment after the waiting call has the replica.
  ASSERT_TRUE(testing::Eventually([this] {
    const v1::GetStatusResponse report = status->Report();
    return report.recent_transfers_size() > 0 && report.active_transfers() == 0;
  }));
  const v1::GetStatusResponse shown = status->Report();
  ASSERT_EQ(shown.recent_transfers_size(), 1);
  EXPECT_EQ(shown.recent_transfers(0).bytes(), artifact.image.size());
  EXPECT_EQ(shown.active_transfers(), 0);
}

}  // namespace
}  // namespace tensorcast::daemon::status_report_test
