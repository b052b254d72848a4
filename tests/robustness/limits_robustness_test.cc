// Servers at the system's limits: more peers connect than they may have descriptors for.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/posix/process_limits.h"
#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "proto/daemon.grpc.pb.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kDescriptors = 256;
constexpr int kVisitors = 400;

class Limits : public RobustnessTest {
 protected:
  void SetUp() override {
    RobustnessTest::SetUp();
    TC_ASSERT_OK(RaiseDescriptorLimit());  // for this process's ends of all these connections
  }

  // The binary under a limit of the shell's `ulimit`, like "-n 256".
  ClusterOptions Under(const std::string& limit) {
    ClusterOptions options = FastOptions();
    options.global_store_settings.push_back("global_store.listen=127.0.0.1:0");
    options.daemon_settings.push_back("daemon.listen=127.0.0.1:0");
    const std::string script = directory_->path() + "/limited";
    std::ofstream(script) << "#!/bin/sh\nulimit " << limit << "\nexec '" << options.binary << "' \"$@\"\n";
    std::filesystem::permissions(script, std::filesystem::perms::owner_all);
    options.binary = script;
    return options;
  }

  // As a process that was not there before: with connections of its own.
  CommandResult Ask(int node, std::vector<std::string> command) {
    for (const std::string& more : {std::string("--daemon"), cluster_->addresses(node).grpc,
                                    std::string("--set"), std::string("client.connect_timeout=2s")}) {
      command.push_back(more);
    }
    return RunCommand(std::move(command));
  }
};

TEST_F(Limits, DescriptorsExhausted_ServiceResumesOnceConnectionsClose) {
  ASSERT_NO_FATAL_FAILURE(StartRobustCluster(Under(absl::StrCat("-n ", kDescriptors))));
  const std::string model = MakeModel("model.safetensors", 4 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model));
  const int daemon_port = PortOf(cluster_->addresses(0).grpc);
  const int store_port = PortOf(cluster_->global_store_address());
  const std::string daemon_socket = cluster_->addresses(0).unix_socket.substr(strlen("unix:"));
  const std::vector<std::function<UniqueFd()>> endpoints = {
      [=] { return ConnectTcp(daemon_port); }, [=] { return ConnectUnix(daemon_socket); },
      [this] { return ConnectUnix(cluster_->addresses(0).handle_socket); },
      [=] { return ConnectTcp(store_port); }};
  for (size_t endpoint = 0; endpoint < endpoints.size(); ++endpoint) {
    SCOPED_TRACE(absl::StrCat("endpoint ", endpoint));
    std::vector<UniqueFd> visitors;
    for (int i = 0; i < kVisitors; ++i) {
      visitors.push_back(endpoints[endpoint]());
      ASSERT_TRUE(visitors.back()) << "visitor " << i << ": " << strerror(errno);
    }
    // A client that was there before is served.
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(0).ResolveKey(Context(), "m"));
    visitors.clear();
    const CommandResult listed = Ask(0, {"ls"});
    EXPECT_EQ(listed.exit_code, 0) << listed.output;
    EXPECT_THAT(listed.output, HasSubstr("m"));
    TC_ASSERT_OK_AND_ASSIGN(const auto copy, client(1).Get(Context(), "m", {.lane = "tcp"}));
    TC_ASSERT_OK(Compare(*copy, model).status());
    TC_ASSERT_OK(DropReplicas(1, put.artifact_id));
  }
  // The global store lets daemons in that it does not know yet.
  TC_ASSERT_OK(cluster_->daemon(1).Signal(SIGKILL));
  TC_ASSERT_OK(cluster_->daemon(1).Wait(Soon()).status());
  TC_ASSERT_OK(cluster_->RestartDaemon(1));
  Reconnect(1);
  TC_ASSERT_OK(client(1).Get(Context(), "m", {}).status());
}

// More connections than the daemon may have descriptors for, which stay open and say nothing.
TEST_F(Limits, IdleConnectionsAtPort_LeaveRoomAtOwnSockets) {
  ClusterOptions options = Under(absl::StrCat("-n ", kDescriptors));
  options.daemons = 1;
  ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
  const std::string model = MakeModel("model.safetensors", 4 << 20);
  TC_ASSERT_OK(Import(0, "m", model).status());
  const int port = PortOf(cluster_->addresses(0).grpc);
  std::vector<UniqueFd> peers;
  for (int i = 0; i < kVisitors; ++i) peers.push_back(ConnectTcp(port));
  // Before the server ends the first of them for their silence, and after it accepted what it could.
  const std::vector<std::vector<std::string>> commands = {
      {"ls"}, {"get", "m"}, {"put", model, "--key", "m2"}};
  for (const std::vector<std::string>& command : commands) {
    std::vector<std::string> words = command;
    words.insert(words.end(), {"--daemon", cluster_->addresses(0).unix_socket});
    const CommandResult done = RunCommand(words);
    EXPECT_EQ(done.exit_code, 0) << command[0] << ": " << done.output;
  }
  // At the port the oldest of them gives way.
  EXPECT_TRUE(testing::Eventually([&] { return Ask(0, {"ls"}).exit_code == 0; }));
  EXPECT_THAT(FileTail(cluster_->daemon_directory(0) + "/log", 1000),
              HasSubstr("closed the oldest connection without an admitted call to make room"));
}

TEST_F(Limits, NodeWithUnresponsivePort_IsNotOfferedUntilItAnswers) {
  ASSERT_NO_FATAL_FAILURE(StartRobustCluster(Under(absl::StrCat("-n ", kDescriptors))));
  const std::string model = MakeModel("model.safetensors", 4 << 20);
  TC_ASSERT_OK(Import(0, "m", model).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, Admin(1));
  const auto await = [&](bool unreachable) -> absl::Status {
    const SteadyTime end = Soon();
    while (SteadyNow() < end) {
      TC_ASSIGN_OR_RETURN(const v1::GetClusterStatusResponse status, admin->GetClusterStatus(Context()));
      for (const v1::Node& node : status.nodes()) {
        if (node.name() == "node-0" && node.unreachable() == unreachable) return absl::OkStatus();
      }
      absl::SleepFor(absl::Milliseconds(50));
    }
    return absl::DeadlineExceededError("node-0 did not become what it should");
  };
  // Visitors with admitted calls have admitted connections, and stay.
  std::vector<std::unique_ptr<v1::StoreDaemon::Stub>> visitors;
  for (int i = 0; i < kDescriptors; ++i) {
    visitors.push_back(v1::StoreDaemon::NewStub(
        rpc::MakeChannel(cluster_->addresses(0).grpc, {.max_message_bytes = rpc::kMaxMessageBytes + i})));
    const absl::Status status = rpc::CallUnary(*visitors.back(), &v1::StoreDaemon::Stub::GetStatus, Context(),
                                               {}, {.retry_for = absl::ZeroDuration()})
                                    .status();
    if (!status.ok()) break;  // the daemon is full
  }
  TC_ASSERT_OK(await(true));
  // Asked as a client asks, but once: it is told what may be otherwise in a moment.
  const auto daemon = v1::StoreDaemon::NewStub(rpc::MakeChannel(cluster_->addresses(1).unix_socket));
  v1::MaterializeReplicaRequest request;
  request.set_key("m");
  request.mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
  request.set_lane("tcp");
  const absl::Status refused = rpc::CallServerStream(
      *daemon, &v1::StoreDaemon::Stub::MaterializeReplica, Context(), request,
      [](v1::MaterializeReplicaResponse&&) { return absl::OkStatus(); }, {.retry_for = absl::ZeroDuration()});
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("its own address does not answer"));
  visitors.clear();
  TC_ASSERT_OK(await(false));
  TC_ASSERT_OK(client(1).Get(Context(), "m", {.lane = "tcp"}).status());
}

TEST_F(Limits, SoftDescriptorLimit_IsRaisedToHardLimit) {
  ClusterOptions options = Under(absl::StrCat("-S -n ", kDescriptors));
  options.daemons = 1;
  ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
  for (const pid_t pid : {cluster_->daemon(0).pid(), cluster_->global_store().pid()}) {
    std::ifstream limits(absl::StrCat("/proc/", pid, "/limits"));
    const std::string all((std::istreambuf_iterator<char>(limits)), {});
    EXPECT_THAT(all, Not(HasSubstr(absl::StrCat("Max open files            ", kDescriptors)))) << all;
  }
}

TEST_F(Limits, LimitTooLowForServer_StartFailsAndNamesLimit) {
  for (const auto& [limit, message] :
       {std::pair("-n 16", "open files are needed before the first client connects, and the limit is 16;"),
        std::pair("-v 500000", "the limit of address space is 488 MiB;")}) {
    SCOPED_TRACE(limit);
    const ClusterOptions options = Under(limit);
    const std::string state = directory_->path() + "/state";
    for (const std::vector<std::string>& server :
         {std::vector<std::string>{"daemon", "--set", "daemon.state_dir=" + state},
          {"global-store", "--set", "global_store.metadata_path=" + state + "/metadata.db"}}) {
      SCOPED_TRACE(server.front());
      std::vector<std::string> argv = server;
      argv.insert(argv.begin(), options.binary);
      const std::string log = directory_->path() + "/log-of-" + server.front();
      TC_ASSERT_OK_AND_ASSIGN(const auto process, Process::Start({.argv = argv, .log_path = log}));
      TC_ASSERT_OK_AND_ASSIGN(const int exit_code, process->Wait(Soon()));
      EXPECT_EQ(exit_code, 1);
      EXPECT_THAT(FileTail(log, 10), HasSubstr(message));
    }
    std::filesystem::remove_all(state);
  }
}

// Without what is shared: the pool is filled in the background.
uint64_t OwnBytes(pid_t pid) {
  std::ifstream statm(absl::StrCat("/proc/", pid, "/statm"));
  uint64_t pages = 0, resident = 0, shared = 0;
  statm >> pages >> resident >> shared;
  return (resident - shared) * static_cast<uint64_t>(getpagesize());
}

// 755 MB of stream under a token that no daemon issued took one from 289 to 3,562 MB.
TEST_F(Limits, UnauthorizedStream_IsRefusedAtItsFirstMessage) {
  constexpr int kMessages = 100;
  constexpr int kTensorsAMessage = 10000;
  ClusterOptions options = FastOptions();
  options.daemons = 1;
  ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
  const std::vector<std::pair<std::string, pid_t>> servers = {
      {cluster_->addresses(0).grpc, cluster_->daemon(0).pid()},
      {cluster_->global_store_address(), cluster_->global_store().pid()}};
  for (const auto& [address, pid] : servers) {
    SCOPED_TRACE(address);
    const auto channel = rpc::MakeChannel(address);
    const uint64_t before = OwnBytes(pid);
    grpc::ClientContext call;
    grpc::Status status;
    int sent = 0;
    if (pid == cluster_->daemon(0).pid()) {
      const auto stub = v1::StoreDaemon::NewStub(channel);
      const auto stream = stub->PutArtifact(&call);
      v1::PutArtifactRequest message;
      message.set_offer_token("never issued");
      for (int i = 0; i < kTensorsAMessage; ++i) {
        v1::PutArtifactRequest::TensorDescription* tensor = message.add_tensors();
        tensor->set_name(absl::StrCat("a tensor with a name of some length, number ", i));
        tensor->set_dtype("F32");
        tensor->add_shape(1);
      }
      while (sent < kMessages && stream->Write(message)) ++sent;
      stream->WritesDone();
      status = stream->Finish();
    } else {
      const auto stub = v1::GlobalStore::NewStub(channel);
      v1::PublishArtifactResponse ignored;
      const auto stream = stub->PublishArtifact(&call, &ignored);
      v1::PublishArtifactRequest message;
      message.mutable_node()->set_node_id("absent");
      message.mutable_node()->set_incarnation(1);
      message.set_manifest_piece(std::string(1 << 20, 'x'));
      while (sent < kMessages && stream->Write(message)) ++sent;
      stream->WritesDone();
      status = stream->Finish();
    }
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << status.error_message();
    EXPECT_LT(sent, kMessages);
    EXPECT_LT(OwnBytes(pid), before + (uint64_t{64} << 20));
  }
}

}  // namespace
}  // namespace tensorcast
