// Many of something at once: clients, gets of one key, tensors.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "client/admin.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

class Crowd : public E2eTest {
 protected:
  // The status of a node once it satisfies `condition`.
  absl::StatusOr<v1::GetStatusResponse> AwaitStatus(
      int node, const std::function<bool(const v1::GetStatusResponse&)>& condition) {
    TC_ASSIGN_OR_RETURN(const auto admin,
                        client::AdminClient::Connect(cluster_->addresses(node).unix_socket));
    std::optional<v1::GetStatusResponse> met;
    const absl::Status status =
        admin->WatchStatus(Context(), absl::Milliseconds(20), [&](const v1::GetStatusResponse& now) {
          if (condition(now)) met = now;
          return !met.has_value();
        });
    if (met) return *met;
    return Annotate(status, "the condition was never met");
  }

  static uint64_t HostPoolUsed(const v1::GetStatusResponse& status) {
    for (const v1::Pool& pool : status.pools()) {
      if (pool.location().kind() == v1::LOCATION_KIND_CPU) return pool.used_bytes();
    }
    return 0;
  }

  static long TransfersOf(const v1::GetStatusResponse& status, const std::string& artifact_id) {
    return std::ranges::count_if(status.recent_transfers(), [&](const v1::TransferReport& report) {
      return report.artifact_id() == artifact_id;
    });
  }
};

TEST_F(Crowd, SixtyFourGetsOfOneKey_ShareOneTransfer) {
  StartCluster();
  const std::string model = MakeModel("model.safetensors", 100 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, client(0).Import(Context(), model, {.key = "m"}));
  constexpr int kGets = 64;
  std::vector<std::unique_ptr<client::Client>> clients;
  for (int i = 0; i < kGets; ++i) {
    TC_ASSERT_OK_AND_ASSIGN(clients.emplace_back(), NewClient(1));
  }
  std::vector<std::unique_ptr<client::PendingGet>> pending;
  for (auto& one : clients) pending.push_back(one->StartGet(Context(), "m", {.lane = "tcp"}));
  std::vector<std::unique_ptr<client::Replica>> replicas;
  for (auto& get : pending) {
    TC_ASSERT_OK_AND_ASSIGN(replicas.emplace_back(), get->Wait(SteadyNow() + kStepTimeout));
    EXPECT_EQ(replicas.back()->replica_id(), replicas.front()->replica_id());
  }
  TC_ASSERT_OK(Compare(*replicas.back(), model).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto status,
                          AwaitStatus(1, [](const auto& now) { return now.leases() == kGets; }));
  EXPECT_EQ(TransfersOf(status, put.artifact_id), 1);
  EXPECT_EQ(status.replicas(), 1u);
  // The counterpart: transfers that did happen twice are counted twice.
  replicas.clear();
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, client::AdminClient::Connect(cluster_->addresses(1).unix_socket));
  TC_ASSERT_OK_AND_ASSIGN(const auto held, admin->ListReplicas(Context(), put.artifact_id));
  ASSERT_EQ(held.size(), 1u);
  TC_ASSERT_OK(AwaitStatus(1, [](const auto& now) { return now.leases() == 0; }).status());
  TC_ASSERT_OK(admin->EvictReplica(Context(), held.front().replica_id(), /*force=*/false));
  TC_ASSERT_OK(client(1).Get(Context(), "m", {.lane = "tcp"}).status());
  TC_ASSERT_OK(
      AwaitStatus(1, [&](const auto& now) { return TransfersOf(now, put.artifact_id) == 2; }).status());
}

TEST_F(Crowd, TwoHundredClients_AttachToOneCopyAndLeaveNothing) {
  ClusterOptions options = DefaultOptions();
  options.daemons = 1;
  StartCluster(options);
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto before, AwaitStatus(0, [](const auto&) { return true; }));
  constexpr int kClients = 200;
  std::vector<std::unique_ptr<client::Client>> clients(kClients);
  std::vector<std::unique_ptr<client::Replica>> replicas(kClients);
  std::vector<absl::Status> outcomes(kClients);
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&, i] {
      outcomes[i] = [&]() -> absl::Status {
        TC_ASSIGN_OR_RETURN(clients[i], NewClient(0));
        TC_ASSIGN_OR_RETURN(replicas[i], clients[i]->Get(Context(), "m", {}));
        return absl::OkStatus();
      }();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& outcome : outcomes) TC_ASSERT_OK(outcome);

  TC_ASSERT_OK_AND_ASSIGN(const auto during,
                          AwaitStatus(0, [](const auto& now) { return now.leases() == kClients; }));
  EXPECT_EQ(HostPoolUsed(during), HostPoolUsed(before)) << "a client was given a copy";
  EXPECT_EQ(during.replicas(), before.replicas());
  for (const auto& replica : replicas) {
    EXPECT_EQ(replica->image().size(), replicas.front()->image().size());
    EXPECT_EQ(std::memcmp(replica->image().data(), replicas.front()->image().data(), 1 << 20), 0);
  }
  TC_ASSERT_OK(Compare(*replicas.back(), model).status());

  replicas.clear();
  clients.clear();
  TC_ASSERT_OK(AwaitStatus(0, [](const auto& now) {
                 return now.leases() == 0 && now.tickets() == 0 && now.handle_connections() == 0;
               }).status());
}

TEST_F(Crowd, ArtifactOfTenThousandTensors_TravelsAndIsImported) {
  StartCluster();
  constexpr uint32_t kTensors = 10'000;
  // Sizes from 4 to 4,000 bytes; each begins with its number.
  std::vector<std::vector<std::byte>> bytes(kTensors);
  std::vector<client::PutTensor> tensors;
  for (uint32_t i = 0; i < kTensors; ++i) {
    bytes[i].assign(4 + i % 3997, static_cast<std::byte>(i * 31));
    std::memcpy(bytes[i].data(), &i, sizeof(i));
    tensors.push_back({absl::StrCat("block.", i, ".weight"), DType::kU8, {bytes[i].size()}, bytes[i]});
  }
  TC_ASSERT_OK_AND_ASSIGN(const auto put, client(0).Put(Context(), tensors, {}, {.key = "wide"}));
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), "wide", {.lane = "tcp"}));
  EXPECT_EQ(replica->tensors().size(), kTensors);
  for (const client::PutTensor& tensor : tensors) {
    TC_ASSERT_OK_AND_ASSIGN(const client::TensorView view, replica->Find(tensor.name));
    ASSERT_TRUE(std::ranges::equal(view.host, tensor.bytes)) << tensor.name;
  }
  // Through a file, which other programs write like that: on the other node, and onto a GPU.
  const std::string file = directory_->path() + "/wide.safetensors";
  const CommandResult got =
      RunCommand({"get", "wide", "--out", file, "--daemon", cluster_->addresses(1).unix_socket});
  ASSERT_EQ(got.exit_code, 0) << got.output;
  TC_ASSERT_OK_AND_ASSIGN(const auto imported, client(1).Import(Context(), file, {.key = "from-file"}));
  TC_ASSERT_OK_AND_ASSIGN(const auto on_gpu,
                          client(0).Get(Context(), "from-file", {.location = "gpu:0", .lane = "tcp"}));
  TC_ASSERT_OK_AND_ASSIGN(const uint64_t compared, Compare(*on_gpu, file));
  EXPECT_GT(compared, kTensors * 1000u);
}

}  // namespace
}  // namespace tensorcast
