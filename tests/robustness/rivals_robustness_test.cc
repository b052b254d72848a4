// Two processes that want to be the same: one name, one state directory, one database, one port.
#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <signal.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Rivals : public RobustnessTest {
 protected:
  // A third daemon's process, with these settings after the common ones.
  absl::StatusOr<std::unique_ptr<Process>> StartRival(const std::vector<std::string>& settings) {
    ProcessOptions rival{.log_path = directory_->path() + "/rival.log", .ready_pipe = true};
    rival.argv = {DefaultOptions().binary, "daemon"};
    std::vector<std::string> all = DefaultOptions().daemon_settings;
    for (const std::string& setting :
         {std::string("daemon.listen=127.0.0.1:0"), std::string("daemon.tcp_listen=127.0.0.1:0"),
          std::string("security.insecure=true"), "daemon.state_dir=" + directory_->path() + "/rival",
          std::string("daemon.name=rival"), "daemon.global_store=" + cluster_->global_store_address()}) {
      all.push_back(setting);
    }
    all.insert(all.end(), settings.begin(), settings.end());
    for (const std::string& setting : all) {
      rival.argv.push_back("--set");
      rival.argv.push_back(setting);
    }
    return Process::Start(rival);
  }
  std::string RivalLog() const { return FileTail(directory_->path() + "/rival.log", 100); }

  // The rival's state directory becomes a copy of this one's.
  void CopyIdentity(int node) {
    const std::filesystem::path copy = directory_->path() + "/rival";
    std::filesystem::create_directory(copy);
    for (const char* file : {"node_id", "incarnation"}) {
      ASSERT_TRUE(std::filesystem::copy_file(cluster_->daemon_directory(node) + "/" + file, copy / file));
    }
  }
  void AwaitReplacedBy(int node, const std::string& name) {
    TC_ASSERT_OK(invariants().Await(node, Soon(), [&](const v1::GetStatusResponse& status) -> absl::Status {
      if (!status.global_store_reachable() &&
          absl::StrContains(status.global_store_error(), "the daemon " + name + " at ")) {
        return absl::OkStatus();
      }
      return absl::UnavailableError(absl::StrCat("its status has the error: ", status.global_store_error()));
    }));
  }

  // The first daemons are as they were.
  void ExpectUnharmed() {
    TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
    TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));
    TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
  }
};

TEST_F(Rivals, SecondDaemonOfSameName_IsRefusedUntilFirstIsGone) {
  StartRobustCluster(FastOptions());
  TC_ASSERT_OK(Import(0, "m", MakeModel("model.safetensors", 20 << 20)).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto rival, StartRival({"daemon.name=node-1"}));
  TC_ASSERT_OK(rival->WaitReady(Soon()).status());
  EXPECT_THAT(RivalLog(), HasSubstr("the name node-1 belongs to the live node"));
  ExpectUnharmed();
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, Admin(0));
  TC_ASSERT_OK_AND_ASSIGN(const auto before, admin->GetClusterStatus(Context()));
  EXPECT_EQ(before.nodes_size(), 2);

  TC_ASSERT_OK_AND_ASSIGN(const auto first, Admin(1));
  TC_ASSERT_OK_AND_ASSIGN(const auto first_status, first->GetStatus(Context()));
  TC_ASSERT_OK(cluster_->daemon(1).Signal(SIGKILL));
  TC_ASSERT_OK(invariants().Await(0, Soon(), [&](const v1::GetStatusResponse&) -> absl::Status {
    TC_ASSIGN_OR_RETURN(const auto cluster, admin->GetClusterStatus(Context()));
    for (const v1::Node& node : cluster.nodes()) {
      if (node.name() == "node-1" && node.node_id() != first_status.node().node_id()) return absl::OkStatus();
    }
    return absl::UnavailableError("the rival is not registered yet");
  }));
  EXPECT_EQ(rival->Stop(absl::Seconds(20)).value_or(-1), 0);
}

TEST_F(Rivals, DaemonOnCopiedStateDirectory_ReplacesFirstWhichEnds) {
  ClusterOptions options = FastOptions();
  options.global_store_settings.push_back("global_store.node_ttl=1s");
  StartRobustCluster(options);
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK(Import(0, "m", model).status());
  ASSERT_NO_FATAL_FAILURE(CopyIdentity(1));
  TC_ASSERT_OK_AND_ASSIGN(const auto rival, StartRival({}));
  TC_ASSERT_OK(rival->WaitReady(Soon()).status());
  TC_ASSERT_OK_AND_ASSIGN(const int code, cluster_->daemon(1).Wait(Soon()));
  EXPECT_EQ(code, 1);
  const std::string last = FileTail(cluster_->daemon_directory(1) + "/log", 1);
  EXPECT_THAT(last, HasSubstr("the daemon rival at 127.0.0.1:"));
  EXPECT_THAT(last, HasSubstr("remove the file node_id from the copy"));

  TC_ASSERT_OK_AND_ASSIGN(const auto admin, Admin(0));
  TC_ASSERT_OK_AND_ASSIGN(const auto cluster, admin->GetClusterStatus(Context()));
  ASSERT_EQ(cluster.nodes_size(), 2);
  for (const v1::Node& node : cluster.nodes()) EXPECT_FALSE(node.draining()) << node.name();
  TC_ASSERT_OK_AND_ASSIGN(const auto client, client::Client::Connect({.daemon = "unix:" + directory_->path() +
                                                                                "/rival/daemon.sock",
                                                                      .devices = devices_.get()}));
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client->Get(Context(), "m", {}));
  TC_ASSERT_OK(Compare(*replica, model).status());
  EXPECT_EQ(rival->Stop(absl::Seconds(20)).value_or(-1), 0);
}

TEST_F(Rivals, ReplacedDaemon_NamesRivalAndReturnsOnceRivalIsGone) {
  StartRobustCluster(FastOptions());
  TC_ASSERT_OK(Import(1, "m", MakeModel("model.safetensors", 20 << 20)).status());
  ASSERT_NO_FATAL_FAILURE(CopyIdentity(1));
  TC_ASSERT_OK_AND_ASSIGN(const auto rival, StartRival({}));
  ASSERT_NO_FATAL_FAILURE(AwaitReplacedBy(1, "rival"));
  TC_ASSERT_OK(rival->Signal(SIGKILL));
  ExpectUnharmed();
}

TEST_F(Rivals, PutAtReplacedDaemon_NamesTheDaemonThatReplacedIt) {
  StartRobustCluster(FastOptions());
  ASSERT_NO_FATAL_FAILURE(CopyIdentity(1));
  TC_ASSERT_OK_AND_ASSIGN(const auto rival, StartRival({}));
  // The first of them may come before this daemon heard of it; each has the same answer.
  TC_ASSERT_OK(rival->WaitReady(Soon()).status());
  const std::string model = MakeModel("model.safetensors", 4 << 20);
  for (int put = 0; put < 2; ++put) {
    const CommandResult result = RunCommand({"put", model, "--daemon", cluster_->addresses(1).unix_socket});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.output,
                AllOf(HasSubstr("FAILED_PRECONDITION: "), HasSubstr("put at this daemon: act as node "),
                      HasSubstr("the daemon rival at 127.0.0.1:")));
  }
  EXPECT_EQ(rival->Stop(absl::Seconds(20)).value_or(-1), 0);
}

TEST_F(Rivals, NodeRegisteredByImpostor_ReturnsOnceImpostorIsSilent) {
  StartRobustCluster(FastOptions());
  TC_ASSERT_OK(Import(0, "m", MakeModel("model.safetensors", 20 << 20)).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, Admin(0));
  TC_ASSERT_OK_AND_ASSIGN(const auto status, admin->GetStatus(Context()));
  const auto store = v1::GlobalStore::NewStub(rpc::MakeChannel(cluster_->global_store_address()));
  v1::RegisterNodeRequest request;
  *request.mutable_node() = status.node();
  request.mutable_node()->set_name("impostor");
  const auto register_as = [&](uint64_t incarnation) {
    request.mutable_node()->set_incarnation(incarnation);
    return rpc::CallUnary(*store, &v1::GlobalStore::Stub::RegisterNode, Context(), request).status();
  };
  EXPECT_EQ(register_as(uint64_t{1} << 63).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(register_as(~uint64_t{0}).code(), absl::StatusCode::kInvalidArgument);
  TC_ASSERT_OK(register_as((uint64_t{1} << 63) - 1));
  ASSERT_NO_FATAL_FAILURE(AwaitReplacedBy(0, "impostor"));
  ExpectUnharmed();
}

TEST_F(Rivals, SecondDaemonInSameStateDirectory_EndsAndNamesIt) {
  StartRobustCluster(FastOptions());
  TC_ASSERT_OK(Import(0, "m", MakeModel("model.safetensors", 20 << 20)).status());
  const std::string state_dir = cluster_->daemon_directory(0);
  std::filesystem::remove(state_dir + "/lock");  // of the versions that had one
  std::filesystem::create_directory_symlink(state_dir, directory_->path() + "/symlink");
  for (const std::string& path : {state_dir, directory_->path() + "/symlink"}) {
    TC_ASSERT_OK_AND_ASSIGN(const auto rival, StartRival({"daemon.state_dir=" + path}));
    TC_ASSERT_OK_AND_ASSIGN(const int code, rival->Wait(Soon()));
    EXPECT_EQ(code, 1) << RivalLog();
    EXPECT_THAT(FileTail(directory_->path() + "/rival.log", 1),
                HasSubstr("lock the state directory " + path + ": another daemon uses the directory"));
  }
  ExpectUnharmed();
}

// Each would count the other's packed files as copies, and remove them.
TEST_F(Rivals, SecondDaemonOnSamePackedFolder_EndsAndNamesIt) {
  StartRobustCluster(FastOptions());
  TC_ASSERT_OK(Import(0, "m", MakeModel("model.safetensors", 20 << 20), /*durable=*/true).status());
  const std::string disk_dir = cluster_->daemon_directory(0) + "/artifacts";
  TC_ASSERT_OK_AND_ASSIGN(const auto rival, StartRival({"daemon.disk_dir=" + disk_dir}));
  TC_ASSERT_OK_AND_ASSIGN(const int code, rival->Wait(Soon()));
  EXPECT_EQ(code, 1) << RivalLog();
  EXPECT_THAT(RivalLog(), HasSubstr("another daemon keeps its packed files in " + disk_dir));
  ExpectUnharmed();
}

// Whatever way it takes to the file, and whatever was removed beside it.
TEST_F(Rivals, SecondGlobalStoreOnSameDatabase_EndsAndNamesIt) {
  StartRobustCluster(FastOptions());
  TC_ASSERT_OK(Import(0, "m", MakeModel("model.safetensors", 20 << 20)).status());
  const std::string folder = directory_->path() + "/global-store";
  std::filesystem::create_symlink(folder + "/metadata.db", directory_->path() + "/symlink.db");
  std::filesystem::create_hard_link(folder + "/metadata.db", directory_->path() + "/hardlink.db");
  std::filesystem::remove(folder + "/metadata.db.lock");  // of the versions that had one
  for (const std::string& path :
       {folder + "/metadata.db", directory_->path() + "/symlink.db", directory_->path() + "/hardlink.db"}) {
    const std::string log = directory_->path() + "/second.log";
    TC_ASSERT_OK_AND_ASSIGN(
        const auto second,
        Process::Start({.argv = {DefaultOptions().binary, "global-store", "--set",
                                 "global_store.listen=unix:" + directory_->path() + "/second", "--set",
                                 "global_store.metadata_path=" + path},
                        .log_path = log}));
    TC_ASSERT_OK_AND_ASSIGN(const int code, second->Wait(Soon()));
    EXPECT_EQ(code, 1) << path;
    EXPECT_THAT(FileTail(log, 1), HasSubstr("lock " + path + ": another global store uses this database"));
  }
  ExpectUnharmed();
}

TEST_F(Rivals, SecondDaemonOnSamePort_EndsAndNamesPort) {
  ClusterOptions options = FastOptions();
  options.daemon_settings.push_back("daemon.listen=127.0.0.1:0");
  StartRobustCluster(options);
  TC_ASSERT_OK(Import(0, "m", MakeModel("model.safetensors", 20 << 20)).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto rival, StartRival({"daemon.listen=" + cluster_->addresses(0).grpc}));
  TC_ASSERT_OK_AND_ASSIGN(const int code, rival->Wait(Soon()));
  EXPECT_EQ(code, 1) << RivalLog();
  EXPECT_THAT(RivalLog(), HasSubstr(cluster_->addresses(0).grpc));
  ExpectUnharmed();
}

TEST_F(Rivals, SecondDaemonOnSameHandleSocket_EndsAndNamesSocket) {
  StartRobustCluster(FastOptions());
  TC_ASSERT_OK(Import(0, "m", MakeModel("model.safetensors", 20 << 20)).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto rival,
                          StartRival({"daemon.handle_socket=" + cluster_->addresses(0).handle_socket}));
  TC_ASSERT_OK_AND_ASSIGN(const int code, rival->Wait(Soon()));
  EXPECT_EQ(code, 1) << RivalLog();
  EXPECT_THAT(RivalLog(), HasSubstr(cluster_->addresses(0).handle_socket));
  ExpectUnharmed();
}

}  // namespace
}  // namespace tensorcast
