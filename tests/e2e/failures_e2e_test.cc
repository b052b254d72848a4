// What goes wrong for real: killed and stopped processes, full pools, wrong bytes, bad input.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/byte_codec.h"
#include "base/steady_time.h"
#include "client/admin.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

using ::testing::HasSubstr;

// What is said at once is said within this; a daemon that waits for its global store takes longer.
constexpr absl::Duration kNotALongTime = absl::Seconds(8);

class Failures : public E2eTest {
 protected:
  // Waits until the daemon's status satisfies `condition`; the daemon streams it.
  absl::Status AwaitStatus(int node, const std::function<bool(const v1::GetStatusResponse&)>& condition) {
    auto admin = client::AdminClient::Connect(cluster_->addresses(node).unix_socket);
    if (!admin.ok()) return admin.status();
    bool met = false;
    const absl::Status status =
        (*admin)->WatchStatus(Context(), absl::Milliseconds(20), [&](const v1::GetStatusResponse& now) {
          met = condition(now);
          return !met;
        });
    return met ? absl::OkStatus()
               : absl::DeadlineExceededError(absl::StrCat("condition never met: ", status.ToString()));
  }

  // Waits until the global store, asked through `node`, offers `replicas` copies of the only artifact.
  absl::Status AwaitReplicas(int node, int replicas) {
    auto admin = client::AdminClient::Connect(cluster_->addresses(node).unix_socket);
    if (!admin.ok()) return admin.status();
    return AwaitStatus(node, [&](const v1::GetStatusResponse&) {
      const auto artifacts =
          (*admin)->ListArtifacts(Context(), /*unkeyed_only=*/false, absl::ZeroDuration(), /*replicas=*/true);
      return artifacts.ok() && artifacts->size() == 1 && artifacts->front().replicas_size() == replicas;
    });
  }
};

TEST_F(Failures, SourceKilledDuringTransfer_AnotherSourceTakesOver) {
  ClusterOptions options = DefaultOptions();
  options.daemons = 3;
  options.daemon_settings.push_back("daemon.staging_buffers=4");  // far less than the model
  TC_ASSERT_OK_AND_ASSIGN(const auto receivers_gpu, AddDeviceFaults(options, 2));
  StartCluster(options);
  const std::string model = MakeModel("model.safetensors", 80 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());

  HoldCopies(*receivers_gpu);
  auto get = client(2).StartGet(Context(), "m", {.location = "gpu:0", .lane = "tcp"});
  TC_ASSERT_OK(AwaitHeldCopy(*receivers_gpu));
  TC_ASSERT_OK(client(1).Get(Context(), "m", {.lane = "local"}).status());
  TC_ASSERT_OK(AwaitReplicas(0, 3));  // with the one that fills
  TC_ASSERT_OK(cluster_->daemon(0).Signal(SIGKILL));
  receivers_gpu->copy_delay_ns = 0;

  TC_ASSERT_OK_AND_ASSIGN(const auto replica, get->Wait(SteadyNow() + kStepTimeout));
  TC_ASSERT_OK(Compare(*replica, model).status());
  ASSERT_TRUE(replica->transfer().has_value());
  const auto& sources = replica->transfer()->sources;
  ASSERT_EQ(sources.size(), 2u);
  EXPECT_EQ(sources[0].source.name, "node-0");
  EXPECT_TRUE(sources[0].loss.has_value());
  EXPECT_EQ(sources[1].source.name, "node-1");
  EXPECT_GT(sources[1].bytes, 0u);
}

TEST_F(Failures, StoppedSource_GetFailsAtPeerTimeout) {
  ClusterOptions options = DefaultOptions();
  options.daemon_settings.push_back("daemon.peer_timeout=1s");
  StartCluster(options);
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  TC_ASSERT_OK(cluster_->daemon(0).Signal(SIGSTOP));
  const auto replica = client(1).Get(Context(absl::Seconds(30)), "m", {.lane = "tcp"});
  EXPECT_FALSE(replica.ok());
  EXPECT_NE(replica.status().code(), absl::StatusCode::kDeadlineExceeded) << replica.status();
  TC_ASSERT_OK(cluster_->daemon(0).Signal(SIGCONT));
  // The source is as good as before, once it has told the global store that it lives.
  TC_ASSERT_OK(AwaitReplicas(1, 1));
  TC_ASSERT_OK_AND_ASSIGN(const auto again, client(1).Get(Context(), "m", {.lane = "tcp"}));
  TC_ASSERT_OK(Compare(*again, model).status());
}

TEST_F(Failures, KilledClient_LeaseIsReleasedAtOnce) {
  ClusterOptions options = DefaultOptions();
  options.daemons = 1;
  StartCluster(options);
  const std::string model = MakeModel("model.safetensors", 8 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  TC_ASSERT_OK_AND_ASSIGN(
      const auto holder,
      Process::Start({.argv = {TENSORCAST_LEASE_HOLDER, cluster_->addresses(0).unix_socket, "m"},
                      .log_path = directory_->path() + "/holder.log",
                      .ready_pipe = true}));
  TC_ASSERT_OK(holder->WaitReady(SteadyNow() + kStepTimeout).status());
  TC_ASSERT_OK(AwaitStatus(0, [](const auto& status) { return status.leases() == 1; }));
  TC_ASSERT_OK(holder->Signal(SIGKILL));
  TC_ASSERT_OK(AwaitStatus(0, [](const auto& status) { return status.leases() == 0; }));
}

TEST_F(Failures, ModelLargerThanPool_PutFailsAndNamesPool) {
  StartCluster();
  const std::string model = MakeModel("model.safetensors", 400 << 20);
  const auto put = client(0).Import(Context(), model, {.key = "m"});
  EXPECT_EQ(put.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(put.status().message()), HasSubstr("pool"));
  EXPECT_EQ(client(0).ResolveKey(Context(), "m").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(Failures, FullPool_EvictsUnheldReplicasAndRefusesWhenAllAreHeld) {
  ClusterOptions options = DefaultOptions();
  options.daemons = 1;
  StartCluster(options);
  // Room for one such model beside the staging buffers, not for two.
  const std::string one = MakeModel("one.safetensors", 100 << 20, 1, 1);
  const std::string two = MakeModel("two.safetensors", 100 << 20, 1, 2);
  TC_ASSERT_OK(client(0).Import(Context(), one, {.key = "one", .durable = true}).status());
  TC_ASSERT_OK_AND_ASSIGN(auto held, client(0).Get(Context(), "one", {}));
  const auto refused = client(0).Import(Context(), two, {.key = "two"});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("lease"));
  held.reset();
  TC_ASSERT_OK(AwaitStatus(0, [](const auto& status) { return status.leases() == 0; }));
  TC_ASSERT_OK(client(0).Import(Context(), two, {.key = "two", .durable = true}).status());
  // The first comes back from its packed file.
  TC_ASSERT_OK_AND_ASSIGN(const auto again, client(0).Get(Context(), "one", {}));
  TC_ASSERT_OK(Compare(*again, one).status());
}

TEST_F(Failures, PackedFileWithWrongByte_IsNotServed) {
  ClusterOptions options = DefaultOptions();
  options.daemons = 1;
  StartCluster(options);
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, client(0).Import(Context(), model, {.key = "m", .durable = true}));
  std::filesystem::remove(model);  // no origin to fall back to
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, client::AdminClient::Connect(cluster_->addresses(0).unix_socket));
  TC_ASSERT_OK(admin->EvictReplica(Context(), put.replica_id, /*force=*/true));

  std::string packed;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(cluster_->daemon_directory(0) + "/artifacts")) {
    if (entry.is_regular_file()) packed = entry.path();
  }
  ASSERT_FALSE(packed.empty());
  std::fstream file(packed, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(10 << 20);
  const char byte = static_cast<char>(file.get());
  file.seekp(10 << 20);
  file.put(static_cast<char>(byte ^ 1));
  file.close();

  const auto replica = client(0).Get(Context(), "m", {});
  EXPECT_EQ(replica.status().code(), absl::StatusCode::kDataLoss) << replica.status();
}

TEST_F(Failures, GlobalStoreAway_DaemonServesItsOwnReplicas) {
  StartCluster();
  const std::string model = MakeModel("model.safetensors", 8 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, client(0).Import(Context(), model, {.key = "m"}));
  ASSERT_EQ(cluster_->global_store().Stop(absl::Seconds(20)).value_or(-1), 0);
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(0).Get(Context(), put.artifact_id, {}));
  TC_ASSERT_OK(Compare(*replica, model).status());
  const auto elsewhere_only = client(1).Get(Context(kNotALongTime), put.artifact_id, {});
  EXPECT_EQ(elsewhere_only.status().code(), absl::StatusCode::kUnavailable) << elsewhere_only.status();
  EXPECT_THAT(std::string(elsewhere_only.status().message()),
              HasSubstr(absl::StrCat("the global store at ", cluster_->global_store_address())));

  // With its database it comes back whole: keys at once, replicas from the daemons' inventories.
  TC_ASSERT_OK(cluster_->RestartGlobalStore());
  TC_ASSERT_OK_AND_ASSIGN(const auto key, client(0).ResolveKey(Context(), "m"));
  EXPECT_EQ(key.artifact_id, put.artifact_id);
  TC_ASSERT_OK(AwaitReplicas(1, 1));
  TC_ASSERT_OK_AND_ASSIGN(const auto elsewhere, client(1).Get(Context(), "m", {}));
  TC_ASSERT_OK(Compare(*elsewhere, model).status());
}

TEST_F(Failures, GlobalStoreAway_KnownKeyResolvesUnconfirmed) {
  StartCluster();
  const std::string model = MakeModel("model.safetensors", 8 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, client(0).Import(Context(), model, {.key = "m", .durable = true}));
  TC_ASSERT_OK_AND_ASSIGN(const auto confirmed, client(0).Get(Context(), "m", {}));
  EXPECT_FALSE(confirmed->key_unconfirmed());
  TC_ASSERT_OK(cluster_->global_store().Signal(SIGKILL));
  TC_ASSERT_OK(cluster_->global_store().Wait(SteadyNow() + kStepTimeout).status());

  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(0).Get(Context(kNotALongTime), "m", {}));
  EXPECT_TRUE(replica->key_unconfirmed());
  EXPECT_EQ(replica->key_revision(), put.key_revision);
  TC_ASSERT_OK(Compare(*replica, model).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto key, client(0).ResolveKey(Context(kNotALongTime), "m"));
  EXPECT_TRUE(key.unconfirmed);
  EXPECT_EQ(key.artifact_id, put.artifact_id);
  const std::string daemon = cluster_->addresses(0).unix_socket;
  const CommandResult get = RunCommand({"get", "m", "--json", "--daemon", daemon});
  EXPECT_EQ(get.exit_code, 0);
  EXPECT_THAT(get.output, HasSubstr("the last revision that this node knows"));
  EXPECT_THAT(get.output, HasSubstr("\"key_unconfirmed\": true"));

  // The other node never saw that key, and says so at once.
  const auto unknown = client(1).Get(Context(kNotALongTime), "m", {});
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kUnavailable) << unknown.status();
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr("key m"));
  EXPECT_THAT(std::string(unknown.status().message()),
              HasSubstr(absl::StrCat("the global store at ", cluster_->global_store_address())));

  // A daemon that starts meanwhile gives its packed artifacts by name, too.
  ASSERT_EQ(cluster_->daemon(0).Stop(absl::Seconds(20)).value_or(-1), 0);
  TC_ASSERT_OK(cluster_->RestartDaemon(0));
  TC_ASSERT_OK_AND_ASSIGN(const auto restarted, NewClient(0));
  TC_ASSERT_OK_AND_ASSIGN(const auto again, restarted->Get(Context(kNotALongTime), "m", {}));
  EXPECT_TRUE(again->key_unconfirmed());
  TC_ASSERT_OK(Compare(*again, model).status());

  TC_ASSERT_OK(cluster_->RestartGlobalStore());
  TC_ASSERT_OK(AwaitReplicas(0, 2));
  TC_ASSERT_OK_AND_ASSIGN(const auto back, restarted->Get(Context(), "m", {}));
  EXPECT_FALSE(back->key_unconfirmed());
}

TEST_F(Failures, GlobalStoreStopped_KnownKeyResolvesWithoutWait) {
  ClusterOptions options = DefaultOptions();
  options.daemons = 1;
  StartCluster(options);
  const std::string model = MakeModel("model.safetensors", 8 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  TC_ASSERT_OK(cluster_->global_store().Signal(SIGSTOP));
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(0).Get(Context(kNotALongTime), "m", {}));
  EXPECT_TRUE(replica->key_unconfirmed());
  const auto unknown = client(0).Get(Context(kNotALongTime), "other", {});
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kUnavailable) << unknown.status();
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr("the global store at"));
  TC_ASSERT_OK(cluster_->global_store().Signal(SIGCONT));
}

TEST_F(Failures, InvalidModelFile_IsRefusedWithFileAndReason) {
  ClusterOptions options = DefaultOptions();
  options.daemons = 1;
  StartCluster(options);
  const auto import_of = [&](std::string_view bytes) {
    const std::string path = directory_->path() + "/bad.safetensors";
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return client(0).Import(Context(), path, {.key = "bad"}).status();
  };
  const auto with_length = [](std::string header, uint64_t length) {
    return ByteWriter().Put(length).Put(header).Take();
  };
  const std::string unknown_dtype = R"({"t":{"dtype":"F7","shape":[1],"data_offsets":[0,1]}})";
  const std::string past_end = R"({"t":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})";
  for (const auto& [bytes, reason] : std::vector<std::pair<std::string, std::string>>{
           {"", "bad.safetensors"},
           {with_length("{", 1), "bad.safetensors"},
           {with_length("{}", uint64_t{1} << 60), "bad.safetensors"},
           {with_length(unknown_dtype, unknown_dtype.size()) + "x", "F7"},
           {with_length(past_end, past_end.size()) + "x", "t"}}) {
    const absl::Status status = import_of(bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(reason));
  }
  EXPECT_EQ(client(0).Import(Context(), directory_->path() + "/nothing-here", {}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(Failures, UnknownKeyOrId_IsNotFound) {
  ClusterOptions options = DefaultOptions();
  options.daemons = 1;
  StartCluster(options);
  const auto by_key = client(0).Get(Context(), "no/such/key", {});
  EXPECT_EQ(by_key.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(by_key.status().message()), HasSubstr("no/such/key"));
  const std::string id = "tc2:" + std::string(52, 'a');
  EXPECT_EQ(client(0).Get(Context(), id, {}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tensorcast
