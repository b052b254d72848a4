// Pulls straight into a GPU's memory, over a lane that reaches GPUs (the loopback one, which copies as a
// network card would), and what goes through the host after all.
#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/test_cluster.h"
#include "transport/loopback/loopback_transport.h"

namespace tensorcast::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Location kGpu{LocationKind::kGpu, 0};

class DirectLane : public ::testing::Test {
 protected:
  // Nodes with a lane that reaches their GPUs. `registering` is asked before a GPU's memory is registered.
  TestNode& AddNode(const std::string& name, const std::function<absl::Status()>& registering = nullptr) {
    return cluster_.AddNode(name, [this, registering](daemon::DaemonOptions& options) {
      OnItsOwnHost(options);
      options.make_transport = [gate = &gate_, registering, devices = options.devices](std::string_view) {
        return NewGatedTransport(gate, {.devices = devices, .before_register_device = registering});
      };
    });
  }
  void Import(TestNode& node, const client::PutOptions& options = {}) {
    const auto put = node.client().Import(Soon(), cluster_.WriteModel("model", artifact_), options);
    ASSERT_TRUE(put.ok()) << put.status();
    id_ = put->artifact_id;
  }
  static absl::Status GetOnGpu(TestNode& node, const std::string& id) {
    return node.client().Get(Soon(), id, {.location = "gpu:0", .attach = false}).status();
  }
  void ExpectRight(TestNode& node) {
    const auto lease = node.server().engine().LeaseArtifact(id_, kGpu);
    ASSERT_TRUE(lease.ok()) << lease.status();
    std::vector<std::byte> bytes(artifact_.image.size());
    const auto stream = node.devices().CreateStream(0);
    ASSERT_TRUE((*stream)->CopyToHost(bytes.data(), (*lease)->memory().device, bytes.size()).ok());
    ASSERT_TRUE((*stream)->Synchronize().ok());
    EXPECT_TRUE(bytes == artifact_.image);
  }
  void FlipOnGpu(TestNode& node, uint64_t byte) {
    const auto lease = node.server().engine().LeaseArtifact(id_, kGpu);
    ASSERT_TRUE(lease.ok()) << lease.status();
    const std::byte flipped = artifact_.image[byte] ^ std::byte{1};
    const auto stream = node.devices().CreateStream(0);
    ASSERT_TRUE((*stream)->CopyToDevice((*lease)->memory().device + byte, &flipped, 1).ok());
    ASSERT_TRUE((*stream)->Synchronize().ok());
  }
  // The node's last transfer.
  static v1::TransferReport LastOf(TestNode& node) {
    return node.admin().GetStatus(Soon())->recent_transfers(0);
  }
  static std::vector<bool> DirectOf(const v1::TransferReport& report) {
    std::vector<bool> direct;
    for (const v1::SourceReport& source : report.sources()) direct.push_back(source.direct());
    return direct;
  }
  // Whether anything was copied to the GPU by the host.
  static bool Staged(const v1::TransferReport& report) {
    return std::ranges::any_of(report.stages(), [](const auto& stage) { return stage.stage() == "place"; });
  }
  void AwaitOnlyReplicaOf(TestNode& node) {
    ASSERT_TRUE(Eventually([&] { return node.admin().GetClusterStatus(Soon())->replicas() == 1; }));
  }

  Gate gate_;
  TestCluster cluster_;
  const TestArtifact artifact_ = MakeChunkedArtifact(11, 6, kTestChunkBytes);
  std::string id_;
};

TEST_F(DirectLane, GpuToGpuPull_BypassesHostAndIsVerifiedOnGpu) {
  TestNode& a = AddNode("a");
  TestNode& b = AddNode("b");
  TestNode& c = AddNode("c");
  Import(a);
  EXPECT_THAT(a.admin().GetStatus(Soon())->node().device_lanes(), ElementsAre("loopback"));
  ASSERT_TRUE(GetOnGpu(b, id_).ok()) << "from host memory to a GPU";
  ExpectRight(b);
  a.Stop();
  AwaitOnlyReplicaOf(c);
  ASSERT_TRUE(GetOnGpu(c, id_).ok()) << "from GPU to GPU";
  ExpectRight(c);
  for (TestNode* node : {&b, &c}) {
    const v1::TransferReport report = LastOf(*node);
    EXPECT_THAT(DirectOf(report), ElementsAre(true));
    EXPECT_FALSE(Staged(report));
    EXPECT_EQ(report.verified_chunks(), artifact_.layout.chunk_count());
  }
  EXPECT_TRUE(Eventually([&] { return b.admin().GetStatus(Soon())->active_servings() == 0; }));
  EXPECT_TRUE(b.admin().GetStatus(Soon())->servings(0).in_place()) << "not by buffers of the host";
  // A receiver without a GPU reads it likewise.
  const auto replica = c.client().Get(Soon(), id_, {.location = "cpu"});
  ASSERT_TRUE(replica.ok()) << replica.status();
}

TEST_F(DirectLane, CorruptGpuSource_IsDetectedByReceiverAndReplaced) {
  TestNode& a = AddNode("a");
  TestNode& b = AddNode("b");
  Import(a, {.location = "gpu:0"});
  FlipOnGpu(a, 3 * kTestChunkBytes + 17);
  // It has the file, too, out of which it makes another replica.
  ASSERT_TRUE(GetOnGpu(b, id_).ok());
  ExpectRight(b);
  const v1::TransferReport report = LastOf(b);
  ASSERT_GE(report.sources_size(), 2);
  EXPECT_TRUE(report.sources(0).direct());
  EXPECT_EQ(report.sources(0).loss(), "bad_digest");
}

TEST_F(DirectLane, SourceDiesDuringDirectPull_OtherSourceSuppliesRest) {
  TestNode& a = AddNode("a");
  TestNode& b = AddNode("b");
  TestNode& c = AddNode("c");
  Import(a);
  ASSERT_TRUE(GetOnGpu(b, id_).ok());
  gate_.Hold(/*pass=*/2);
  absl::Status got;
  std::thread getting([&] { got = GetOnGpu(c, id_); });
  gate_.AwaitHeld(1);
  b.Stop();
  gate_.Release();
  getting.join();
  ASSERT_TRUE(got.ok()) << got;
  ExpectRight(c);
}

TEST_F(DirectLane, GpuMemoryNotRegistrableAtReceiver_TransferIsStaged) {
  TestNode& a = AddNode("a");
  std::atomic<int> asked = 0;
  TestNode& b = AddNode("b", [&asked] {
    ++asked;
    return absl::ResourceExhaustedError("no more registrations");
  });
  Import(a);
  ASSERT_TRUE(GetOnGpu(b, id_).ok());
  ExpectRight(b);
  EXPECT_EQ(asked, 1);
  EXPECT_THAT(DirectOf(LastOf(b)), ElementsAre(false));
  EXPECT_TRUE(Staged(LastOf(b)));
}

// The daemon knows lanes by their names: these stand in for two that follow each other.
TEST_F(DirectLane, GpuMemoryNotRegistrableAtSource_NextLaneIsUsed) {
  std::atomic<int> asked = 0;
  const auto add = [&](const std::string& name,
                       const std::function<absl::Status()>& registering) -> TestNode& {
    return cluster_.AddNode(name, [registering](daemon::DaemonOptions& options) {
      OnItsOwnHost(options);
      options.lanes = {"ucx-rma", "tcp"};
      options.make_transport = [registering, devices = options.devices](std::string_view lane) {
        return lane == "tcp" ? transport::NewLoopbackTransport({.name = "tcp"})
                             : transport::NewLoopbackTransport({.name = std::string(lane),
                                                                .devices = devices,
                                                                .before_register_device = registering});
      };
    });
  };
  TestNode& a = add("a", [&asked] {
    ++asked;
    return absl::ResourceExhaustedError("no more registrations");
  });
  TestNode& b = add("b", nullptr);
  Import(a, {.location = "gpu:0"});
  ASSERT_TRUE(GetOnGpu(b, id_).ok());
  ExpectRight(b);
  EXPECT_EQ(asked, 1);
  const v1::TransferReport report = LastOf(b);
  ASSERT_EQ(report.sources_size(), 2);
  EXPECT_EQ(report.sources(0).lane(), "tcp");
  EXPECT_FALSE(report.sources(0).direct());
  EXPECT_EQ(report.sources(1).lane(), "ucx-rma");
  EXPECT_EQ(report.sources(1).loss(), "not_opened");
}

TEST_F(DirectLane, LaneThatReachesOnlyHostMemory_TransferIsStaged) {
  TestNode& a = cluster_.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster_.AddNode("b", OnItsOwnHost);
  Import(a);
  EXPECT_THAT(b.admin().GetStatus(Soon())->node().device_lanes(), IsEmpty());
  ASSERT_TRUE(GetOnGpu(b, id_).ok());
  ExpectRight(b);
  EXPECT_THAT(DirectOf(LastOf(b)), ElementsAre(false));
  EXPECT_TRUE(Staged(LastOf(b)));
}

}  // namespace
}  // namespace tensorcast::testing
