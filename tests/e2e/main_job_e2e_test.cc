// The main job with real processes: store a model once, load it on another node, verified.
#include <gmock/gmock.h>

#include <algorithm>
#include <thread>

#include "absl/time/clock.h"
#include "base/steady_time.h"
#include "client/admin.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

class MainJob : public E2eTest {
 protected:
  void StartOverUcx() {
    ClusterOptions options = DefaultOptions();
    options.lanes = {"ucx"};
    StartCluster(options);
  }

  // Imports on node 0, gets on node 1 at `location` over `lane`, compares, and checks which lane moved the
  // bytes.
  void PutAndGet(const std::string& location, const std::string& lane) {
    const std::string model = MakeModel("model.safetensors", 40 << 20);
    TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
    TC_ASSERT_OK_AND_ASSIGN(const auto replica,
                            client(1).Get(Context(), "m", {.location = location, .lane = lane}));
    TC_ASSERT_OK_AND_ASSIGN(const uint64_t compared, Compare(*replica, model));
    EXPECT_GT(compared, 30u << 20);
    ASSERT_TRUE(replica->transfer().has_value());
    EXPECT_EQ(replica->transfer()->stages.front().source.lane, lane);
    TC_ASSERT_OK_AND_ASSIGN(const auto admin,
                            client::AdminClient::Connect(cluster_->addresses(1).unix_socket));
    TC_ASSERT_OK_AND_ASSIGN(const auto replicas, admin->ListReplicas(Context(), replica->artifact_id()));
    const auto made = std::ranges::find(replicas, replica->replica_id(), &v1::Replica::replica_id);
    ASSERT_NE(made, replicas.end());
    EXPECT_GT(made->chunks_total(), 1u);
    EXPECT_EQ(replica->transfer()->verified_chunks, made->chunks_total());
  }
};

TEST_F(MainJob, PutAndGetHostMemory_WorksOverUcx) {
  StartOverUcx();
  PutAndGet("cpu", "ucx");
}

TEST_F(MainJob, PutAndGetGpuMemory_WorksOverUcx) {
  StartOverUcx();
  PutAndGet("gpu:1", "ucx");
}

TEST_F(MainJob, PutAndGetHostMemory_WorksOverTcp) {
  StartCluster();
  PutAndGet("cpu", "tcp");
}

TEST_F(MainJob, PutAndGetGpuMemory_WorksOverTcp) {
  StartCluster();
  PutAndGet("gpu:1", "tcp");
}

TEST_F(MainJob, PutAndGetHostMemory_WorksOverLocalLane) {
  StartCluster();
  PutAndGet("cpu", "local");
}

TEST_F(MainJob, PutAndGetGpuMemory_WorksOverLocalLane) {
  StartCluster();
  PutAndGet("gpu:0", "local");
}

TEST_F(MainJob, NoForcedLane_SameHostUsesLocalOtherHostsTcp) {
  ClusterOptions options = DefaultOptions();
  options.daemons = 3;
  options.settings_of_daemon = {{}, {}, {"daemon.host_id=another-host"}};
  StartCluster(options);
  const std::string model = MakeModel("model.safetensors", 8 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto far, client(2).Get(Context(), "m", {}));
  EXPECT_EQ(far->transfer()->stages.front().source.lane, "tcp");
  TC_ASSERT_OK_AND_ASSIGN(const auto near, client(1).Get(Context(), "m", {}));
  EXPECT_EQ(near->transfer()->stages.front().source.lane, "local");
  TC_ASSERT_OK(Compare(*far, model).status());
  TC_ASSERT_OK(Compare(*near, model).status());
}

TEST_F(MainJob, ShardedModelPutSeveralTimes_IsOneArtifact) {
  StartCluster();
  const std::string model = MakeModel("sharded", 20 << 20, /*shards=*/3);
  TC_ASSERT_OK_AND_ASSIGN(const auto first, client(0).Import(Context(), model, {.key = "a"}));
  TC_ASSERT_OK_AND_ASSIGN(const auto again, client(0).Import(Context(), model, {.key = "b"}));
  TC_ASSERT_OK_AND_ASSIGN(const auto elsewhere, client(1).Import(Context(), model, {.key = "c"}));
  EXPECT_FALSE(first.existed);
  EXPECT_TRUE(again.existed);
  EXPECT_TRUE(elsewhere.existed);
  EXPECT_EQ(first.artifact_id, again.artifact_id);
  EXPECT_EQ(first.artifact_id, elsewhere.artifact_id);
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), "a", {}));
  TC_ASSERT_OK(Compare(*replica, model).status());
}

TEST_F(MainJob, PutOfHostTensors_StoresTheirBytesAndMetadata) {
  StartCluster();
  std::vector<std::byte> weights(5'000'003), bias(17);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<std::byte>(i * 7);
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<std::byte>(i);
  const std::vector<client::PutTensor> tensors = {{"w", DType::kU8, {weights.size()}, weights},
                                                  {"b", DType::kI8, {17}, bias},
                                                  {"empty", DType::kF32, {0, 4}, {}}};
  TC_ASSERT_OK_AND_ASSIGN(const auto put,
                          client(0).Put(Context(), tensors, {{"step", "12"}}, {.key = "train/step"}));
  EXPECT_EQ(put.key_revision, 1u);
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), "train/step", {}));
  EXPECT_EQ(replica->key_revision(), 1u);
  EXPECT_THAT(replica->metadata(), testing::ElementsAre(testing::Pair("step", "12")));
  TC_ASSERT_OK_AND_ASSIGN(const auto view, replica->Find("w"));
  EXPECT_TRUE(std::equal(view.host.begin(), view.host.end(), weights.begin(), weights.end()));
  TC_ASSERT_OK_AND_ASSIGN(const auto small, replica->Find("b"));
  EXPECT_TRUE(std::equal(small.host.begin(), small.host.end(), bias.begin(), bias.end()));
  TC_ASSERT_OK_AND_ASSIGN(const auto empty, replica->Find("empty"));
  EXPECT_TRUE(empty.host.empty());
  EXPECT_EQ(replica->Find("missing").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(MainJob, PutOfGpuTensors_StoresTheirBytes) {
  StartCluster();
  std::vector<std::byte> weights(3'000'001), bias(34);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<std::byte>(i * 13);
  TC_ASSERT_OK_AND_ASSIGN(const DevicePtr memory, devices_->Allocate(1, weights.size()));
  TC_ASSERT_OK_AND_ASSIGN(const auto stream, devices_->CreateStream(1));
  TC_ASSERT_OK(stream->CopyToDevice(memory, weights.data(), weights.size()));
  TC_ASSERT_OK(stream->Synchronize());
  // Part of what lies there, beside a tensor of host memory and one of nothing.
  const std::vector<client::PutTensor> tensors = {
      {.name = "w", .dtype = DType::kU8, .shape = {1000, 3000}, .device = memory + 1},
      {.name = "b", .dtype = DType::kBF16, .shape = {17}, .bytes = bias},
      {.name = "empty", .dtype = DType::kF32, .shape = {0, 4}, .device = memory}};
  TC_ASSERT_OK(client(0).Put(Context(), tensors, {}, {.key = "train/step", .location = "gpu:0"}).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), "train/step", {}));
  TC_ASSERT_OK_AND_ASSIGN(const auto view, replica->Find("w"));
  EXPECT_TRUE(std::equal(view.host.begin(), view.host.end(), weights.begin() + 1, weights.end()));

  client::PutTensor wrong{
      .name = "too long", .dtype = DType::kU8, .shape = {weights.size() + 1}, .device = memory};
  const absl::Status refused = client(0).Put(Context(), {&wrong, 1}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.message(), testing::HasSubstr("too long"));
  TC_ASSERT_OK(devices_->Free(memory));
}

TEST_F(MainJob, GetAtGpuAll_MakesReplicaOnEveryGpu) {
  StartCluster();
  const std::string model = MakeModel("model.safetensors", 8 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  const std::string all[] = {"cpu", "gpu:all"};
  TC_ASSERT_OK_AND_ASSIGN(const auto replicas, client(1).GetAt(Context(), "m", all));
  std::vector<std::string> places;
  for (const auto& replica : replicas) {
    places.push_back(replica->location().ToString());
    TC_ASSERT_OK(Compare(*replica, model).status());
  }
  EXPECT_THAT(places, testing::ElementsAre("cpu", "gpu:0", "gpu:1"));
  const std::string elsewhere[] = {"gpu:0", "gpu:7"};
  const absl::Status refused = client(1).GetAt(Context(), "m", elsewhere).status();
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(refused.message(), testing::HasSubstr("at gpu:7"));
}

TEST_F(MainJob, ManyGetsOfOneKey_ShareOneReplica) {
  StartCluster();
  const std::string model = MakeModel("model.safetensors", 60 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  constexpr int kGets = 16;
  std::vector<std::unique_ptr<client::PendingGet>> pending;
  for (int i = 0; i < kGets; ++i) pending.push_back(client(1).StartGet(Context(), "m", {}));
  std::vector<std::string> replicas;
  for (auto& get : pending) {
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, get->Wait(SteadyNow() + kStepTimeout));
    replicas.push_back(replica->replica_id());
  }
  EXPECT_THAT(replicas, testing::Each(replicas.front()));
}

TEST_F(MainJob, GetsToBothGpusOfNode_PullOneCopyOverNetwork) {
  ClusterOptions options = DefaultOptions();
  options.settings_of_daemon = {{"daemon.host_id=here", "daemon.limits.send=32MiB"},
                                {"daemon.host_id=there"}};
  StartCluster(options);
  if (HasFatalFailure()) return;
  const std::string model = MakeModel("model.safetensors", 24 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  std::vector<std::unique_ptr<client::PendingGet>> gets;
  for (const std::string location : {"gpu:0", "gpu:1"}) {
    gets.push_back(client(1).StartGet(Context(), "m", {.location = location}));
  }
  uint64_t over_tcp = 0;
  uint64_t image_bytes = 0;
  for (const auto& get : gets) {
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, get->Wait(SteadyNow() + kStepTimeout));
    TC_ASSERT_OK(Compare(*replica, model).status());
    ASSERT_TRUE(replica->transfer().has_value());
    image_bytes = replica->transfer()->bytes;
    for (const SourceReport& source : replica->transfer()->sources) {
      if (source.source.lane == "tcp") over_tcp += source.bytes;
    }
  }
  EXPECT_EQ(over_tcp, image_bytes);
}

TEST_F(MainJob, DaemonWithoutGlobalStore_WorksAlone) {
  ClusterOptions options = DefaultOptions();
  options.daemons = 1;
  options.global_store = false;
  StartCluster(options);
  const std::string model = MakeModel("model.safetensors", 8 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m", .durable = true}).status());
  TC_ASSERT_OK_AND_ASSIGN(auto replica, client(0).Get(Context(), "m", {.location = "gpu:0"}));
  TC_ASSERT_OK(Compare(*replica, model).status());
  replica.reset();

  // What was acknowledged as durable is still there after a restart.
  clients_.clear();
  ASSERT_EQ(cluster_->daemon(0).Stop(absl::Seconds(20)).value_or(-1), 0);
  TC_ASSERT_OK(cluster_->RestartDaemon(0));
  TC_ASSERT_OK_AND_ASSIGN(const auto again, NewClient(0));
  TC_ASSERT_OK_AND_ASSIGN(replica, again->Get(Context(), "m", {}));
  TC_ASSERT_OK(Compare(*replica, model).status());
}

TEST_F(MainJob, WatchKeys_ReportsEachNewRevision) {
  StartCluster();
  const std::string one = MakeModel("one.safetensors", 4 << 20, 1, 1);
  const std::string two = MakeModel("two.safetensors", 4 << 20, 1, 2);
  TC_ASSERT_OK_AND_ASSIGN(const auto first, client(0).Import(Context(), one, {.key = "m"}));
  std::vector<std::string> seen;
  RequestContext context = Context();
  std::thread trainer;
  const absl::Status watched = client(1).WatchKeys(context, "m", [&](const client::KeyInfo& key) {
    seen.push_back(key.artifact_id);
    if (seen.size() == 1) {
      trainer = std::thread([&] { (void)client(0).Import(Context(), two, {.key = "m"}); });
    }
    return seen.size() < 2;
  });
  trainer.join();
  TC_ASSERT_OK(watched);
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0], first.artifact_id);
  EXPECT_NE(seen[1], seen[0]);
}

}  // namespace
}  // namespace tensorcast
