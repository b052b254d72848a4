#include "daemon/service/damaged_replicas.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/testing/eventually.h"
#include "base/testing/temp_folder.h"
#include "core/device/fake_device.h"
#include "core/testing/scripted_source.h"
#include "core/testing/test_artifact.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::daemon::damaged_replicas_test {
namespace {

using tensorcast::testing::Eventually;
using ::testing::HasSubstr;

class DamagedReplicasTest : public ::testing::Test {
 protected:
  DamagedReplicas::Options Options(absl::StatusOr<std::string> made) {
    return {.engine = engine_.get(),
            .handles = handles_.get(),
            .replace =
                [this, made = std::move(made)](const RequestContext&, const v1::DamagedReplica& damaged) {
                  EXPECT_EQ(damaged.artifact_id(), artifact_.manifest->id());
                  ++tries_;
                  return made;
                },
            .retry_interval = absl::ZeroDuration(),
            .tries = 3};
  }

  v1::DamagedReplica Damaged() {
    const RequestContext context = RequestContext::Background(absl::Seconds(20));
    auto pending = engine_->Ingest(
        context, {.manifest = artifact_.manifest,
                  .location = {LocationKind::kCpu},
                  .sources = std::make_shared<testing::ScriptedProvider>(
                      std::vector{testing::MakeControl(artifact_.image, testing::SourceScript{})})});
    EXPECT_TRUE(pending.ok()) << pending.status();
    EXPECT_TRUE((*pending)->Wait(context).ok());
    const ReplicaInfo replica = engine_->ListReplicas().front();
    EXPECT_TRUE(engine_->SetPinned(replica.id, true).ok());
    v1::DamagedReplica damaged;
    damaged.set_replica_id(replica.id);
    damaged.set_artifact_id(replica.artifact_id);
    damaged.mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
    damaged.set_offset(4096);
    return damaged;
  }

  static v1::DamagedReplica Only(const DamagedReplicas& damaged) {
    google::protobuf::RepeatedPtrField<v1::DamagedReplica> found;
    damaged.Fill(&found);
    EXPECT_EQ(found.size(), 1);
    return found.empty() ? v1::DamagedReplica() : found.at(0);
  }

  const tensorcast::testing::TempFolder folder_;
  const testing::TestArtifact artifact_ = testing::MakeChunkedArtifact(1, 3);
  const std::unique_ptr<HostPool> pool_ =
      *HostPool::Create({.bytes = 32 << 20, .use_huge_pages = false, .prefault_threads = 0});
  const std::unique_ptr<DeviceRuntime> devices_ =
      *CreateFakeRuntime({.device_count = 1, .device_bytes = 16 << 20});
  const std::unique_ptr<StoreEngine> engine_ = *StoreEngine::Create({.node_id = "me",
                                                                     .host_pool = pool_.get(),
                                                                     .devices = devices_.get(),
                                                                     .staging_buffers = 2,
                                                                     .staging_buffer_bytes = 2 << 20});
  const std::unique_ptr<HandleServer> handles_ =
      *HandleServer::Start({.path = folder_.path() + "/handles.sock"});
  std::atomic<int> tries_ = 0;
};

TEST_F(DamagedReplicasTest, DamagedReplica_IsDroppedListedAndReplaced) {
  DamagedReplicas damaged(Options("new"));
  const v1::DamagedReplica damage = Damaged();
  damaged.Note(damage);
  EXPECT_TRUE(engine_->ListReplicas().empty()) << "pinned or not";
  EXPECT_TRUE(Eventually([&] { return Only(damaged).replaced_by() == "new"; }));
  const v1::DamagedReplica found = Only(damaged);
  EXPECT_EQ(found.replica_id(), damage.replica_id());
  EXPECT_EQ(found.artifact_id(), artifact_.manifest->id());
  EXPECT_EQ(found.offset(), 4096u);
  EXPECT_EQ(found.ended_leases(), 0u);
  EXPECT_EQ(tries_, 1);
}

TEST_F(DamagedReplicasTest, DamagedReplicaWithoutSource_IsRetriedAndListed) {
  DamagedReplicas damaged(Options(absl::UnavailableError("no source")));
  damaged.Note(Damaged());
  EXPECT_TRUE(Eventually([&] { return tries_ == 3; }));
  EXPECT_EQ(Only(damaged).replaced_by(), "");
}

}  // namespace
}  // namespace tensorcast::daemon::damaged_replicas_test
