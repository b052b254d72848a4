// Peers that connect to a real daemon and a real global store without speaking their languages: random
// bytes, bytes of another protocol or of another version of ours, a beginning and then silence. No other
// peer notices.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/posix/unique_fd.h"
#include "base/steady_time.h"
#include "core/artifact/tensor_selection.h"
#include "core/handles/codec.h"
#include "daemon/global_store_link/global_store_channel.h"
#include "daemon/global_store_link/global_store_client.h"
#include "proto/daemon.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "rpc/protocol_version.h"
#include "rpc/server.h"
#include "tests/e2e/listening_ports.h"
#include "tests/robustness/robustness_test_base.h"
#include "transport/pull/wire.h"
#include "transport/ucx/raw_peer.h"

namespace tensorcast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kVisitors = 200;

// The next frame from the handle socket.
absl::StatusOr<Frame> ReceiveFrame(int socket) {
  const timeval patience{.tv_sec = absl::ToInt64Seconds(kStepTimeout)};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  std::array<std::byte, kFramePrefixBytes> prefix;
  if (recv(socket, prefix.data(), prefix.size(), MSG_WAITALL) != static_cast<ssize_t>(prefix.size())) {
    return absl::UnavailableError("no answer");
  }
  TC_ASSIGN_OR_RETURN(const size_t bytes, DecodeFramePrefix(prefix, kMaxServerFrameBytes));
  std::vector<std::byte> body(bytes);
  if (recv(socket, body.data(), bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes)) {
    return absl::UnavailableError("half an answer");
  }
  return DecodeFrame(body);
}

// What the i-th visitor says.
std::string Words(std::mt19937_64& random, int visitor) {
  switch (visitor % 4) {
    case 0:
      return "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    case 1:
      return "";  // comes and goes
    case 2:
      return std::string(64 << 10, '\0');
    default:
      break;
  }
  std::string bytes(1 + random() % 5000, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// The same without what UCX takes for its own and aborts on (transport/ucx/README.md): its magic, and a
// header that announces less than then comes.
std::string WordsForUcx(std::mt19937_64& random, int visitor) {
  std::string bytes = Words(random, visitor);
  for (size_t i = 0; i < std::min<size_t>(bytes.size(), sizeof(uint64_t)); ++i) bytes[i] |= '\x80';
  return bytes;
}

// A daemon as far as other daemons see it: says that it has an artifact, and opens one pull of it; the
// other end of that is whatever `peer` says.
class FakeSource final : public v1::StoreDaemon::Service {
 public:
  FakeSource(transport::RawPeer& peer, uint64_t image_bytes)
      : descriptor_(transport::pull::EncodeDescriptor(
            {.lane = "ucx", .image_bytes = image_bytes, .addresses = {peer.Listen()}})) {}

  absl::Status Start(const std::string& global_store, const std::string& artifact_id) {
    TC_ASSIGN_OR_RETURN(server_, rpc::Server::Start({.listen = {"127.0.0.1:0"}, .services = {this}}));
    const auto store =
        daemon::MakeGlobalStoreClient(std::make_shared<daemon::GlobalStoreChannel>(global_store));
    const RequestContext context = RequestContext::Background(kStepTimeout);
    v1::RegisterNodeRequest node;
    node.mutable_node()->set_node_id(kName);
    node.mutable_node()->set_name(kName);
    node.mutable_node()->set_incarnation(1);
    node.mutable_node()->set_host_id(kName);
    node.mutable_node()->set_protocol_version(rpc::kProtocolVersion);
    node.mutable_node()->set_grpc_address(server_->addresses()[0]);
    node.mutable_node()->add_lanes("ucx");
    TC_RETURN_IF_ERROR(store->RegisterNode(context, node).status());
    v1::UpdateReplicasRequest update;
    update.mutable_node()->set_node_id(kName);
    update.mutable_node()->set_incarnation(1);
    update.set_sequence(1);
    v1::Replica* replica = update.add_replicas();
    replica->set_replica_id("replica of a fake source");
    replica->set_artifact_id(artifact_id);
    replica->set_node_id(kName);
    replica->mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
    replica->set_state(v1::REPLICA_STATE_READY);
    return store->UpdateReplicas(context, update).status();
  }

  grpc::Status OpenPull(grpc::ServerContext*, const v1::OpenPullRequest*,
                        v1::OpenPullResponse* response) override {
    if (opened_.exchange(true)) return grpc::Status(grpc::StatusCode::NOT_FOUND, "opened already");
    response->set_pull_descriptor(descriptor_);
    return grpc::Status::OK;
  }

 private:
  static constexpr char kName[] = "fake-source";
  const std::string descriptor_;
  std::atomic<bool> opened_ = false;
  std::unique_ptr<rpc::Server> server_;
};

class Unauthenticated : public RobustnessTest {
 protected:
  explicit Unauthenticated(std::string lane = "tcp") : lane_(std::move(lane)) {}

  void SetUp() override {
    RobustnessTest::SetUp();
    ClusterOptions options = FastOptions();
    options.lanes = {lane_};
    options.global_store_settings.push_back("global_store.listen=127.0.0.1:0");
    options.daemon_settings.push_back("daemon.listen=127.0.0.1:0");
    ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
    model_ = MakeModel("model.safetensors", 20 << 20);
    TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model_));
    artifact_ = put.artifact_id;
    TC_ASSERT_OK(AwaitReplicas(1, artifact_, 1));
    ExpectServed();  // and warm
    TC_ASSERT_OK(invariants().RecordBaseline(Soon()));
  }

  // Some of them stay to the end, and are silent.
  void Visit(const std::function<UniqueFd()>& connect, decltype(Words)* say = Words) {
    std::mt19937_64 random(20261121);
    std::vector<UniqueFd> staying;
    for (int visitor = 0; visitor < kVisitors; ++visitor) {
      UniqueFd fd = connect();
      ASSERT_TRUE(fd) << "visitor " << visitor << " was not let in: " << std::strerror(errno);
      const std::string words = say(random, visitor);
      // The server may close the connection in the middle of a message.
      (void)!send(fd.get(), words.data(), words.size(), MSG_NOSIGNAL);
      if (visitor % 10 == 0) staying.push_back(std::move(fd));
    }
    ExpectServed();
  }

  // What daemon 0 listens on beside gRPC.
  std::set<int> LanePorts() {
    std::set<int> ports = ListeningPorts(cluster_->daemon(0).pid());
    ports.erase(PortOf(cluster_->addresses(0).grpc));
    return ports;
  }

  // A get over the network and an attach, beside whatever else goes on.
  void ExpectServed() {
    for (int node : {0, 1}) ASSERT_TRUE(cluster_->daemon(node).running());
    ASSERT_TRUE(cluster_->global_store().running());
    {
      TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), "m", {.lane = lane_}));
      TC_ASSERT_OK(Compare(*replica, model_).status());
    }
    TC_ASSERT_OK(DropReplicas(1, artifact_));
    TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));
  }

  const std::string lane_;
  std::string model_;
  std::string artifact_;
};

// The same at the ports of UCX over TCP.
class UcxUnauthenticated : public Unauthenticated {
 protected:
  UcxUnauthenticated() : Unauthenticated("ucx") {}
};

TEST_F(Unauthenticated, InvalidBytesAtHandleSocket_DoNoHarm) {
  ASSERT_NO_FATAL_FAILURE(Visit([&] { return ConnectUnix(cluster_->addresses(0).handle_socket); }));
  TC_ASSERT_OK(invariants().AwaitBaseline(Soon()));
}

TEST_F(Unauthenticated, InvalidBytesAtDaemonPort_DoNoHarm) {
  const int port = PortOf(cluster_->addresses(0).grpc);
  ASSERT_NO_FATAL_FAILURE(Visit([port] { return ConnectTcp(port); }));
  TC_ASSERT_OK(invariants().AwaitBaseline(Soon()));
}

TEST_F(Unauthenticated, InvalidBytesAtTcpLanePort_DoNoHarm) {
  const std::set<int> ports = LanePorts();
  ASSERT_EQ(ports.size(), 1u);
  ASSERT_NO_FATAL_FAILURE(Visit([&] { return ConnectTcp(*ports.begin()); }));
  TC_ASSERT_OK(invariants().AwaitBaseline(Soon()));
}

TEST_F(UcxUnauthenticated, InvalidBytesAtUcxPorts_DoNoHarm) {
  const std::set<int> ports = LanePorts();
  ASSERT_FALSE(ports.empty());
  for (const int port : ports) {
    ASSERT_NO_FATAL_FAILURE(Visit([port] { return ConnectTcp(port); }, WordsForUcx)) << "port " << port;
  }
  // UCX keeps the sockets of some visitors that left without a word, so the baseline does not come back.
  ExpectServed();
}

TEST_F(Unauthenticated, InvalidBytesAtGlobalStorePort_DoNoHarm) {
  const int port = PortOf(cluster_->global_store_address());
  ASSERT_NO_FATAL_FAILURE(Visit([port] { return ConnectTcp(port); }));
  TC_ASSERT_OK(invariants().AwaitBaseline(Soon()));
}

// Calls that are well formed, with patterns that are too many, too long, not text, or slow to compare.
TEST_F(Unauthenticated, ExpensiveTensorPatterns_AreRefused) {
  std::string many_stars;
  for (int i = 0; i < 1000; ++i) many_stars += "*a";
  std::string large_set = "*[";
  for (char c = '0'; c <= '9'; ++c) large_set += std::string(400, c);
  const std::vector<std::vector<std::string>> hostile = {
      std::vector<std::string>(kMaxTensorPatterns + 1, "*"),
      std::vector<std::string>(kMaxTensorPatterns, "*b*"),
      {std::string(1 << 20, '*')},
      {std::string(kMaxTensorPatternBytes + 1, 'a')},
      {many_stars + "*b"},
      {large_set + "]*[" + large_set + "]"},
      std::vector<std::string>(500, std::string(4000, '[')),
      {""},
      {std::string("model\0*", 7)},
  };
  const auto stub = v1::StoreDaemon::NewStub(rpc::MakeChannel(cluster_->addresses(0).grpc));
  for (const std::vector<std::string>& patterns : hostile) {
    SCOPED_TRACE(absl::StrCat(patterns.size(), " like ", patterns[0].substr(0, 20)));
    v1::AttachReplicaRequest attach;
    attach.set_artifact_id(artifact_);
    attach.mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
    attach.mutable_tensors()->Add(patterns.begin(), patterns.end());
    const absl::Status attached =
        rpc::CallUnary(*stub, &v1::StoreDaemon::Stub::AttachReplica, Context(), attach).status();
    EXPECT_EQ(attached.code(), absl::StatusCode::kInvalidArgument) << attached;
    v1::MaterializeReplicaRequest get;
    get.set_artifact_id(artifact_);
    get.mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
    *get.mutable_tensors() = attach.tensors();
    const absl::Status got =
        rpc::CallServerStream(*stub, &v1::StoreDaemon::Stub::MaterializeReplica, Context(), get,
                              [](v1::MaterializeReplicaResponse&&) { return absl::OkStatus(); });
    EXPECT_EQ(got.code(), absl::StatusCode::kInvalidArgument) << got;
  }
  ASSERT_NO_FATAL_FAILURE(ExpectServed());
  TC_ASSERT_OK(invariants().AwaitBaseline(Soon()));
}

TEST_F(Unauthenticated, OtherHandleProtocolVersion_ErrorNamesBothVersions) {
  for (const uint16_t version : {kHandleProtocolVersion + 1, 0xffff}) {
    const UniqueFd fd = ConnectUnix(cluster_->addresses(0).handle_socket);
    ASSERT_TRUE(fd);
    const std::string hello = *EncodeFrame(HelloFrame{version});
    ASSERT_EQ(send(fd.get(), hello.data(), hello.size(), MSG_NOSIGNAL), static_cast<ssize_t>(hello.size()));
    TC_ASSERT_OK_AND_ASSIGN(const Frame answer, ReceiveFrame(fd.get()));
    const auto* error = std::get_if<ErrorFrame>(&answer);
    ASSERT_NE(error, nullptr) << FrameName(answer);
    EXPECT_EQ(error->status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(error->status.message()),
                AllOf(HasSubstr(absl::StrCat("speaks version ", version)),
                      HasSubstr(absl::StrCat("the daemon speaks version ", kHandleProtocolVersion))));
    char byte;
    EXPECT_EQ(recv(fd.get(), &byte, 1, 0), 0) << "the daemon kept the connection";
  }
  ExpectServed();
  TC_ASSERT_OK(invariants().AwaitBaseline(Soon()));
}

TEST_F(UcxUnauthenticated, OtherPullProtocolVersion_ErrorNamesBothVersions) {
  using namespace transport;
  int told = 0;
  for (const int port : LanePorts()) {
    RawPeer peer;
    peer.Connect(absl::StrCat("127.0.0.1:", port));
    for (const uint8_t version : {pull::kVersion + 1, 0xff}) {
      peer.Send(pull::Hello{.version = version, .max_piece_bytes = 1000});
      if (!peer.Hears()) break;  // a port that UCX has for itself
      const pull::Frame answer = peer.Next();
      const auto* error = std::get_if<pull::Error>(&answer);
      ASSERT_NE(error, nullptr) << "a message of kind " << answer.index();
      EXPECT_EQ(error->request_id, pull::kWholePull);
      EXPECT_EQ(error->status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(std::string(error->status.message()),
                  AllOf(HasSubstr(absl::StrCat("speaks version ", version)),
                        HasSubstr(absl::StrCat("this source speaks version ", pull::kVersion))));
      ++told;
    }
    ExpectServed();
  }
  EXPECT_EQ(told, 2);
}

TEST_F(UcxUnauthenticated, SourceOfOtherPullVersion_ErrorNamesBothVersions) {
  using namespace transport;
  TC_ASSERT_OK_AND_ASSIGN(auto replica, client(0).Get(Context(), "m", {}));
  const uint64_t image_bytes = replica->image().size();
  replica.reset();
  RawPeer peer;
  FakeSource source(peer, image_bytes);
  TC_ASSERT_OK(source.Start(cluster_->global_store_address(), artifact_));
  TC_ASSERT_OK(DropReplicas(0, artifact_));
  TC_ASSERT_OK(AwaitReplicas(1, artifact_, 1));
  // Else the node that imported it would read it again and serve that.
  const std::string away = absl::StrCat(model_, ".away");
  std::filesystem::rename(model_, away);
  const auto get = client(1).StartGet(Context(), "m", {.lane = lane_});
  const auto hello = peer.NextAs<pull::Hello>();
  EXPECT_EQ(hello.version, pull::kVersion);
  peer.Send(pull::Welcome{
      .version = 9, .max_requests = 1, .max_request_bytes = 1 << 20, .image_bytes = image_bytes});
  // The client asks again for a while, and is told how that ended; the daemon's log has each try.
  EXPECT_FALSE(get->Wait(SteadyNow() + kStepTimeout).ok());
  EXPECT_THAT(FileTail(cluster_->daemon_directory(1) + "/log", 1000),
              AllOf(HasSubstr("version 9 of the pull protocol"),
                    HasSubstr(absl::StrCat("this receiver speaks version ", pull::kVersion))));
  std::filesystem::rename(away, model_);
  TC_ASSERT_OK(Import(0, "m", model_).status());
  ExpectServed();  // though the other source is still there
}

}  // namespace
}  // namespace tensorcast
