// From GPU to GPU, by the timeline of the GPUs of the processes: on one host without the host's memory,
// between hosts with every stage at work at once.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "absl/strings/str_cat.h"
#include "client/admin.h"
#include "tests/e2e/e2e_test_base.h"
#include "tests/stand_ins/cuda/copy_engines.h"

namespace tensorcast {
namespace {

using stand_ins::TimelineEntry;
using ::testing::HasSubstr;

constexpr uint64_t kModelBytes = uint64_t{40} << 20;
constexpr uint64_t kDigestBytes = 16;

class Direct : public E2eTest {
 protected:
  // Two daemons that see the same four GPUs. The model is on the first one of node 0, and nowhere else.
  void StartWithModelOnGpu(uint64_t model_bytes = kModelBytes) {
    options_.daemon_environments.resize(2);
    for (Environment& environment : options_.daemon_environments) {
      environment.push_back({"CUDA_VISIBLE_DEVICES", "0,1,2,3"});
      environment.push_back({stand_ins::kTimelineVariable, timeline_path()});
    }
    StartCluster(options_);
    if (HasFatalFailure()) return;
    model_ = MakeModel("model.safetensors", model_bytes);
    TC_ASSERT_OK_AND_ASSIGN(const auto put, client(0).Import(Context(), model_, {.key = "m"}));
    TC_ASSERT_OK(client(0).Get(Context(), "m", {.location = "gpu:0"}).status());
    TC_ASSERT_OK_AND_ASSIGN(const auto admin,
                            client::AdminClient::Connect(cluster_->addresses(0).unix_socket));
    TC_ASSERT_OK_AND_ASSIGN(const auto replicas, admin->ListReplicas(Context(), put.artifact_id));
    for (const v1::Replica& replica : replicas) {
      if (replica.location().kind() == v1::LOCATION_KIND_GPU) continue;
      TC_ASSERT_OK(admin->EvictReplica(Context(), replica.replica_id(), /*force=*/true));
    }
    ForgetTimeline();
  }
  void ForgetTimeline() {
    TC_ASSERT_OK_AND_ASSIGN(const auto timeline, stand_ins::ReadTimeline(timeline_path()));
    before_ = timeline.size();
  }
  // What the node's GPUs did since the model was there.
  std::vector<TimelineEntry> Copies(int node, CopyDirection direction) {
    const auto timeline = stand_ins::ReadTimeline(timeline_path());
    EXPECT_TRUE(timeline.ok()) << timeline.status();
    std::vector<TimelineEntry> copies;
    for (size_t i = before_; i < timeline->size(); ++i) {
      const TimelineEntry& copy = (*timeline)[i];
      if (copy.pid == cluster_->daemon(node).pid() && copy.direction == direction) copies.push_back(copy);
    }
    return copies;
  }
  uint64_t Copied(int node, CopyDirection direction) {
    uint64_t bytes = 0;
    for (const TimelineEntry& copy : Copies(node, direction)) bytes += copy.bytes;
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

  void SetUp() override {
    E2eTest::SetUp();
    options_ = DefaultOptions();
  }

  ClusterOptions options_;
  std::string model_;
  size_t before_ = 0;
};

TEST_F(Direct, GetBetweenGpusOfDaemon_CopiesDirectly) {
  StartWithModelOnGpu();
  if (HasFatalFailure()) return;
  ExpectDirect(0, "gpu:1", kDeviceLane);
}

TEST_F(Direct, GetBetweenGpusOfTwoDaemonsOnHost_CopiesDirectly) {
  StartWithModelOnGpu();
  if (HasFatalFailure()) return;
  ExpectDirect(1, "gpu:3", kLocalLane);
  EXPECT_EQ(Copied(0, CopyDirection::kToHost), 0u) << "the daemon that has it does nothing";
}

TEST_F(Direct, GetBetweenDaemonsOnSameGpu_CopiesDirectly) {
  StartWithModelOnGpu();
  if (HasFatalFailure()) return;
  ExpectDirect(1, "gpu:0", kLocalLane);
}

TEST_F(Direct, UnverifiedReplica_DoesNotCountAsCopy) {
  options_.daemon_settings.push_back("daemon.device_verification=off");
  StartWithModelOnGpu();
  if (HasFatalFailure()) return;
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(0).Get(Context(), "m", {.location = "gpu:1"}));
  EXPECT_EQ(replica->transfer()->verified_chunks, 0u);
  TC_ASSERT_OK(Compare(*replica, model_).status());
  const std::string daemon = cluster_->addresses(0).unix_socket;
  EXPECT_THAT(RunCommand({"ls", "--nodes", "--daemon", daemon}).output, HasSubstr("(not verified)"));
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, client::AdminClient::Connect(daemon));
  TC_ASSERT_OK_AND_ASSIGN(const auto replicas, admin->ListReplicas(Context(), replica->artifact_id()));
  const auto verified = std::ranges::find(replicas, 0u, &v1::Replica::chunks_unverified);
  ASSERT_NE(verified, replicas.end());
  std::filesystem::remove_all(model_);  // it would be a copy, too
  EXPECT_THAT(std::string(admin->EvictReplica(Context(), verified->replica_id(), /*force=*/false).message()),
              HasSubstr("last copy"));
}

TEST_F(Direct, GetBetweenGpusOfTwoHosts_OverlapsAllStages) {
  constexpr uint64_t kBytes = uint64_t{96} << 20;
  constexpr uint64_t kBytesPerSecond = uint64_t{48} << 20;
  constexpr double kAllowed = 1.2;  // of the slower GPU's copies alone
  constexpr int kAttempts = 5;
  options_.settings_of_daemon = {{"daemon.host_id=here", "daemon.limits.send=48MiB"},
                                 {"daemon.host_id=there", "daemon.staging_buffers=8"}};
  TC_ASSERT_OK_AND_ASSIGN(const auto from, AddDeviceFaults(options_, 0));
  TC_ASSERT_OK_AND_ASSIGN(const auto to, AddDeviceFaults(options_, 1));
  StartWithModelOnGpu(kBytes);
  if (HasFatalFailure()) return;
  from->bytes_per_second[static_cast<size_t>(CopyDirection::kToHost)] = kBytesPerSecond;
  to->bytes_per_second[static_cast<size_t>(CopyDirection::kToDevice)] = kBytesPerSecond;
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, client::AdminClient::Connect(cluster_->addresses(1).unix_socket));
  // A machine that is busy with other work only adds to it: the stages by themselves are the best of a few.
  double min = std::numeric_limits<double>::infinity();
  for (int attempt = 0; attempt < kAttempts && min > kAllowed; ++attempt) {
    ForgetTimeline();
    std::string replica_id;
    {
      TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), "m", {.location = "gpu:1"}));
      EXPECT_EQ(replica->transfer()->stages.front().source.lane, "tcp");
      replica_id = replica->replica_id();
    }
    const std::vector<TimelineEntry> out = Copies(0, CopyDirection::kToHost);
    const std::vector<TimelineEntry> in = Copies(1, CopyDirection::kToDevice);
    ASSERT_FALSE(out.empty() || in.empty());
    const auto busy = [](const std::vector<TimelineEntry>& copies) {
      int64_t ns = 0;
      for (const TimelineEntry& copy : copies) ns += copy.end_ns - copy.begin_ns;
      return ns;
    };
    min = std::min(min, static_cast<double>(in.back().end_ns - out.front().begin_ns) /
                            static_cast<double>(std::max(busy(out), busy(in))));
    TC_ASSERT_OK(admin->EvictReplica(Context(), replica_id, /*force=*/true));
  }
  EXPECT_LE(min, kAllowed);
}

}  // namespace
}  // namespace tensorcast
