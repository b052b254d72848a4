// From GPU to GPU of one host without the host's memory, by the timeline of the GPUs of the processes.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/admin.h"
#include "tests/e2e/e2e_test_base.h"
#include "tests/stand_ins/cuda/copy_engines.h"

namespace tensorcast {
namespace {

using stand_ins::TimelineEntry;

constexpr uint64_t kModelBytes = uint64_t{40} << 20;
constexpr uint64_t kDigestBytes = 16;

class Direct : public E2eTest {
 protected:
  // Two daemons that see the same four GPUs. The model is on the first one of node 0, and nowhere else.
  void StartWithModelOnGpu() {
    ClusterOptions options = DefaultOptions();
    options.daemon_environments.assign(
        2, {{"CUDA_VISIBLE_DEVICES", "0,1,2,3"}, {stand_ins::kTimelineVariable, timeline_path()}});
    StartCluster(options);
    if (HasFatalFailure()) return;
    model_ = MakeModel("model.safetensors", kModelBytes);
    TC_ASSERT_OK_AND_ASSIGN(const auto put, client(0).Import(Context(), model_, {.key = "m"}));
    TC_ASSERT_OK(client(0).Get(Context(), "m", {.location = "gpu:0"}).status());
    TC_ASSERT_OK_AND_ASSIGN(const auto admin,
                            client::AdminClient::Connect(cluster_->addresses(0).unix_socket));
    TC_ASSERT_OK_AND_ASSIGN(const auto replicas, admin->ListReplicas(Context(), put.artifact_id));
    for (const v1::Replica& replica : replicas) {
      if (replica.location().kind() == v1::LOCATION_KIND_GPU) continue;
      TC_ASSERT_OK(admin->EvictReplica(Context(), replica.replica_id(), /*force=*/true));
    }
    TC_ASSERT_OK_AND_ASSIGN(const auto timeline, stand_ins::ReadTimeline(timeline_path()));
    before_ = timeline.size();
  }
  // What the node's GPUs did since the model was there.
  uint64_t Copied(int node, CopyDirection direction) {
    const auto timeline = stand_ins::ReadTimeline(timeline_path());
    EXPECT_TRUE(timeline.ok()) << timeline.status();
    uint64_t bytes = 0;
    for (size_t i = before_; i < timeline->size(); ++i) {
      const TimelineEntry& copy = (*timeline)[i];
      if (copy.pid == cluster_->daemon(node).pid() && copy.direction == direction) bytes += copy.bytes;
    }
    return bytes;
  }
  // A get by this node, by `lane`, of all of the model.
  void ExpectDirect(int node, const std::string& location, std::string_view lane) {
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(node).Get(Context(), "m", {.location = location}));
    TC_ASSERT_OK(Compare(*replica, model_).status());
    ASSERT_TRUE(replica->transfer().has_value());
    EXPECT_EQ(replica->transfer()->stages.front().source.lane, lane);
    EXPECT_GT(replica->transfer()->verified_chunks, 1u);
    EXPECT_EQ(Copied(node, CopyDirection::kOnDevice), replica->transfer()->bytes);
    EXPECT_EQ(Copied(node, CopyDirection::kToDevice), 0u);
    EXPECT_EQ(Copied(node, CopyDirection::kToHost), replica->transfer()->verified_chunks * kDigestBytes);
  }

  std::string timeline_path() const { return absl::StrCat(directory_->path(), "/timeline"); }

  std::string model_;
  size_t before_ = 0;
};

TEST_F(Direct, BetweenTheGpusOfADaemon) {
  StartWithModelOnGpu();
  if (HasFatalFailure()) return;
  ExpectDirect(0, "gpu:1", kDeviceLane);
}

TEST_F(Direct, BetweenTheGpusOfTwoDaemonsOfAHost) {
  StartWithModelOnGpu();
  if (HasFatalFailure()) return;
  ExpectDirect(1, "gpu:3", kLocalLane);
  EXPECT_EQ(Copied(0, CopyDirection::kToHost), 0u) << "who has it does nothing";
}

TEST_F(Direct, FromOneDaemonToAnotherOnTheSameGpu) {
  StartWithModelOnGpu();
  if (HasFatalFailure()) return;
  ExpectDirect(1, "gpu:0", kLocalLane);
}

}  // namespace
}  // namespace tensorcast
