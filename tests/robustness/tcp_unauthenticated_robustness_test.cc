// Peers that connect to the ports of a cluster with certificates and should not be served: without one, with
// one that is over, of another authority, of another role, or denied; with another node's pull, or one that
// has ended; those that scan, are silent, or send anything. None gets a byte of an artifact, and the cluster
// does its work.
#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <memory>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/posix/process_limits.h"
#include "base/posix/unique_fd.h"
#include "base/testing/eventually.h"
#include "daemon/global_store_link/global_store_channel.h"
#include "daemon/global_store_link/global_store_client.h"
#include "proto/daemon.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "rpc/credentials.h"
#include "rpc/protocol_version.h"
#include "security/testing/test_authority.h"
#include "tests/e2e/listening_ports.h"
#include "tests/robustness/robustness_test_base.h"
#include "transport/pull/wire.h"

namespace tensorcast {
namespace {

using security::Identity;
using security::testing::TestAuthority;
using ::testing::HasSubstr;
using transport::PullId;
namespace wire = transport::pull;

constexpr uint64_t kModelBytes = 8 << 20;
constexpr uint64_t kAskedBytes = 64 << 10;
constexpr int kVisitors = 100;
constexpr int kSilent = 1000;
constexpr int64_t kMaxBytesForSilent = 20 << 20;
// gRPC keeps all of them, at some 15 KiB each, until their connections are closed.
constexpr int64_t kMaxBytesForSilentAtGrpc = 64 << 20;

// What a visitor came away with.
struct Got {
  bool welcome = false;
  uint64_t bytes = 0;  // of the artifact
  absl::Status refusal;
};

// As much as there is of a connection by TLS, or without.
class ForeignPeer {
 public:
  // Files that are empty are not shown.
  ForeignPeer(int port, const Identity::Files& files) : socket_(ConnectTcp(port)) {
    const timeval patience{.tv_sec = absl::ToInt64Seconds(kStepTimeout), .tv_usec = 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    context_.reset(SSL_CTX_new(TLS_client_method()));
    if (!files.certificate.empty()) {
      EXPECT_EQ(SSL_CTX_use_certificate_chain_file(context_.get(), files.certificate.c_str()), 1);
      EXPECT_EQ(SSL_CTX_use_PrivateKey_file(context_.get(), files.key.c_str(), SSL_FILETYPE_PEM), 1);
    }
    tls_.reset(SSL_new(context_.get()));
    SSL_set_fd(tls_.get(), socket_.get());
  }

  // Shows its certificate and asks for bytes of this pull, without a check of the other end.
  Got Ask(const PullId& pull) {
    Got got;
    if (SSL_connect(tls_.get()) != 1) return got;
    Say(wire::Hello{.pull_id = pull});
    for (;;) {
      const auto frame = wire::DecodeFrame(heard_);
      EXPECT_TRUE(frame.ok()) << frame.status();
      if (!frame.ok()) return got;
      if (!frame->has_value()) {
        if (!HearMore()) return got;
        continue;
      }
      heard_.erase(0, (*frame)->bytes);
      if (std::holds_alternative<wire::Welcome>((*frame)->frame)) {
        got.welcome = true;
        Say(wire::Request{.id = 1, .offset = 0, .bytes = kAskedBytes});
      } else if (const auto* error = std::get_if<wire::Error>(&(*frame)->frame)) {
        got.refusal = error->status;
      } else if (const auto* data = std::get_if<wire::Data>(&(*frame)->frame)) {
        while (heard_.size() < data->bytes && HearMore()) {
        }
        got.bytes += std::min<uint64_t>(heard_.size(), data->bytes);
        heard_.erase(0, data->bytes);
        if (got.bytes == kAskedBytes) return got;
      }
    }
  }

 private:
  void Say(const wire::Frame& frame) {
    const std::string bytes = wire::EncodeFrame(frame);
    (void)SSL_write(tls_.get(), bytes.data(), static_cast<int>(bytes.size()));
  }
  bool HearMore() {
    char bytes[16 << 10];
    const int got = SSL_read(tls_.get(), bytes, sizeof(bytes));
    if (got > 0) heard_.append(bytes, got);
    return got > 0;
  }

  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
    void operator()(SSL* tls) const { SSL_free(tls); }
  };
  UniqueFd socket_;
  std::unique_ptr<SSL_CTX, Free> context_;
  std::unique_ptr<SSL, Free> tls_;
  std::string heard_;
};

// A pull of node 0's replica, as its receiver has it.
struct OpenedPull {
  std::string grant_id;
  std::string grant_token;
  std::string replica_id;
  PullId id{};
};

class TcpUnauthenticated : public RobustnessTest {
 protected:
  // A server that closes while a peer still writes is an error of that write, and no signal.
  TcpUnauthenticated() { signal(SIGPIPE, SIG_IGN); }

  void SetUp() override {
    RobustnessTest::SetUp();
    TC_ASSERT_OK(RaiseDescriptorLimit());  // for this process's ends of all these connections
    ClusterOptions options = DefaultOptions();
    options.settings_of_daemon = {{"daemon.host_id=host-0"}, {"daemon.host_id=host-1"}};
    // A receiver that only the test plays sends no heartbeats.
    options.global_store_settings = {"global_store.node_ttl=1m", "global_store.grant_ttl=1m"};
    UseCertificates(options, authority_);
    ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
    grpc_port_ = PortOf(cluster_->addresses(0).grpc);
    std::set<int> ports = ListeningPorts(cluster_->daemon(0).pid());
    ports.erase(grpc_port_);
    ASSERT_EQ(ports.size(), 1u);
    tcp_port_ = *ports.begin();
    model_ = MakeModel("model.safetensors", kModelBytes);
    TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model_));
    artifact_ = put.artifact_id;
    TC_ASSERT_OK(AwaitReplicas(1, artifact_, 1));
    ExpectServed();  // and warm
  }

  // A get over the lane, and an attach.
  void ExpectServed() {
    ASSERT_TRUE(cluster_->daemon(0).running());
    {
      TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), "m", {.lane = "tcp"}));
      TC_ASSERT_OK(Compare(*replica, model_).status());
      TC_ASSERT_OK(client(0).Get(Context(), "m").status());
    }
    TC_ASSERT_OK(DropReplicas(1, artifact_));
    TC_ASSERT_OK(AwaitReplicas(1, artifact_, 1));
  }

  std::shared_ptr<grpc::Channel> ChannelAs(const std::string& name, const std::string& address) const {
    return rpc::MakeChannel(address,
                            {.credentials = std::make_shared<rpc::Credentials>(authority_.Load(name))});
  }
  absl::StatusOr<v1::OpenPullResponse> OpenAs(const std::string& name, const OpenedPull& pull) const {
    v1::OpenPullRequest request;
    request.set_grant_id(pull.grant_id);
    request.set_grant_token(pull.grant_token);
    request.set_replica_id(pull.replica_id);
    request.set_artifact_id(artifact_);
    request.set_receiver_node_id(kReceiver);
    request.set_lane("tcp");
    const auto stub = v1::StoreDaemon::NewStub(ChannelAs(name, cluster_->addresses(0).grpc));
    return rpc::CallUnary(*stub, &v1::StoreDaemon::Stub::OpenPull, Context(), request);
  }
  // As a node "receiver" that registers, asks for a grant and opens its pull, and says no more.
  absl::StatusOr<OpenedPull> OpenAsReceiver() const {
    const std::string& address = cluster_->global_store_address();
    const auto store = daemon::MakeGlobalStoreClient(std::make_shared<daemon::GlobalStoreChannel>(
        address, rpc::ChannelOptions{
                     .credentials = std::make_shared<rpc::Credentials>(authority_.Load("node/receiver"))}));
    v1::RegisterNodeRequest node;
    node.mutable_node()->set_node_id(kReceiver);
    node.mutable_node()->set_name(kReceiver);
    node.mutable_node()->set_incarnation(1);
    node.mutable_node()->set_host_id(kReceiver);
    node.mutable_node()->set_protocol_version(rpc::kProtocolVersion);
    node.mutable_node()->set_grpc_address("127.0.0.1:1");
    node.mutable_node()->add_lanes("tcp");
    TC_RETURN_IF_ERROR(store->RegisterNode(Context(), node).status());
    v1::RequestReplicaTransportRequest request;
    request.mutable_node()->set_node_id(kReceiver);
    request.mutable_node()->set_incarnation(1);
    request.set_artifact_id(artifact_);
    request.mutable_destination()->set_kind(v1::LOCATION_KIND_CPU);
    request.set_required_lane("tcp");
    TC_ASSIGN_OR_RETURN(const auto response, store->RequestReplicaTransport(Context(), request));
    OpenedPull pull{.grant_id = response.grants(0).grant_id(),
                    .grant_token = response.grants(0).token(),
                    .replica_id = response.grants(0).replica().replica_id()};
    TC_ASSIGN_OR_RETURN(const auto opened, OpenAs("node/receiver", pull));
    TC_ASSIGN_OR_RETURN(const wire::Descriptor descriptor,
                        wire::DecodeDescriptor("tcp", opened.pull_descriptor()));
    pull.id = descriptor.pull_id;
    return pull;
  }

  Got AskAs(const Identity::Files& files, const PullId& pull) const {
    return ForeignPeer(tcp_port_, files).Ask(pull);
  }

  static constexpr char kReceiver[] = "receiver";
  TestAuthority authority_;
  int grpc_port_ = 0;
  int tcp_port_ = 0;
  std::string model_;
  std::string artifact_;
};

TEST_F(TcpUnauthenticated, PeersOtherThanReceiver_GetNoByteOfPull) {
  TC_ASSERT_OK_AND_ASSIGN(const OpenedPull pull, OpenAsReceiver());
  const TestAuthority other("test.example");
  const std::vector<std::pair<const char*, Identity::Files>> peers = {
      {"no certificate", {}},
      {"one of another authority", other.Issue("node/receiver")},
      {"one that is over", authority_.Issue("node/over", -absl::Hours(1))},
      {"a client's", authority_.Issue("client/trainer")},
      {"an operator's", authority_.Issue("operator/ada")},
      {"the global store's", authority_.Issue("global-store")},
      {"another node's", authority_.Issue("node/node-1")}};
  for (const auto& [peer, files] : peers) {
    const Got got = AskAs(files, pull.id);
    EXPECT_FALSE(got.welcome) << peer;
    EXPECT_EQ(got.bytes, 0u) << peer;
  }
  // In clear, too, a peer that knows the secret learns nothing.
  const UniqueFd clear = ConnectTcp(tcp_port_);
  const std::string hello = wire::EncodeFrame(wire::Hello{.pull_id = pull.id});
  ASSERT_EQ(send(clear.get(), hello.data(), hello.size(), MSG_NOSIGNAL), static_cast<ssize_t>(hello.size()));
  std::string answer(1 << 10, '\0');
  answer.resize(std::max<ssize_t>(recv(clear.get(), answer.data(), answer.size(), 0), 0));
  EXPECT_FALSE(wire::DecodeFrame(answer).value_or(std::nullopt).has_value()) << "a frame in clear";

  // With the same, its receiver is served: what was refused was worth something.
  const Identity::Files receiver = authority_.Issue("node/receiver");
  EXPECT_EQ(AskAs(receiver, pull.id).bytes, kAskedBytes);
  uint64_t served = kAskedBytes;
  authority_.Deny("node/receiver");
  EXPECT_TRUE(testing::Eventually([&] {
    const Got got = AskAs(receiver, pull.id);
    served += got.bytes;
    return !got.welcome;
  }));
  authority_.Deny("node/absent");
  EXPECT_TRUE(testing::Eventually([&] {
    const Got got = AskAs(receiver, pull.id);
    served += got.bytes;
    return got.welcome;
  }));

  // Another's grant opens nothing, for any caller with its token.
  for (const char* name : {"node/node-1", "client/trainer", "operator/ada"}) {
    EXPECT_EQ(OpenAs(name, pull).status().code(), absl::StatusCode::kPermissionDenied) << name;
  }
  // Once it has ended no peer may use it, and it served what its receiver got.
  v1::ClosePullRequest close;
  close.set_grant_id(pull.grant_id);
  const auto stub = v1::StoreDaemon::NewStub(ChannelAs("node/receiver", cluster_->addresses(0).grpc));
  TC_ASSERT_OK_AND_ASSIGN(const auto closed,
                          rpc::CallUnary(*stub, &v1::StoreDaemon::Stub::ClosePull, Context(), close));
  EXPECT_EQ(closed.bytes_served(), served);
  const Got replayed = AskAs(receiver, pull.id);
  EXPECT_FALSE(replayed.welcome);
  EXPECT_EQ(replayed.bytes, 0u);
  EXPECT_EQ(replayed.refusal.code(), absl::StatusCode::kNotFound) << replayed.refusal;
  EXPECT_FALSE(OpenAs("node/receiver", pull).ok());
  ExpectServed();
}

TEST_F(TcpUnauthenticated, ClosePull_IsRefusedToNodeThatIsNotTheReceiver) {
  TC_ASSERT_OK_AND_ASSIGN(const OpenedPull pull, OpenAsReceiver());
  v1::ClosePullRequest close;
  close.set_grant_id(pull.grant_id);  // which GetStatus tells every node
  const auto other = v1::StoreDaemon::NewStub(ChannelAs("node/node-1", cluster_->addresses(0).grpc));
  const auto refused = rpc::CallUnary(*other, &v1::StoreDaemon::Stub::ClosePull, Context(), close);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kPermissionDenied) << refused.status();
  EXPECT_EQ(AskAs(authority_.Issue("node/receiver"), pull.id).bytes, kAskedBytes);
}

TEST_F(TcpUnauthenticated, PortScansAndRandomBytes_AreDisconnected) {
  // What a TLS client says first, which a visitor may break off anywhere.
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  SSL_CTX_free);
  const std::unique_ptr<SSL, decltype(&SSL_free)> tls(SSL_new(context.get()), SSL_free);
  BIO* const said = BIO_new(BIO_s_mem());
  SSL_set_bio(tls.get(), BIO_new(BIO_s_mem()), said);
  SSL_set_connect_state(tls.get());
  ASSERT_NE(SSL_do_handshake(tls.get()), 1);
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(said, &data);  // NOLINT(google-runtime-int): OpenSSL's
  const std::string client_hello(data, bytes);

  std::mt19937_64 random(20261122);
  for (const int port : {tcp_port_, grpc_port_, PortOf(cluster_->global_store_address())}) {
    std::vector<UniqueFd> staying;
    for (int visitor = 0; visitor < kVisitors; ++visitor) {
      UniqueFd fd = ConnectTcp(port);
      ASSERT_TRUE(fd) << "visitor " << visitor << " was not let in";
      std::string words;
      switch (visitor % 5) {
        case 0:
          break;  // comes and goes
        case 1:
          words = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
          break;
        case 2:
          words = client_hello.substr(0, random() % client_hello.size());
          break;
        case 3:
          words = client_hello;
          words[random() % words.size()] ^= 1 << random() % 8;
          words += client_hello;
          break;
        default:
          words.resize(1 + random() % 5000);
          for (char& byte : words) byte = static_cast<char>(random());
      }
      // The server may close the connection in the middle of a message.
      (void)!send(fd.get(), words.data(), words.size(), MSG_NOSIGNAL);
      if (visitor % 4 == 0) staying.push_back(std::move(fd));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectServed()) << "port " << port;
  }
}

// Of the process itself, without what it shares: its pool.
int64_t OwnMemory(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string word; status >> word;) {
    if (word != "RssAnon:") continue;
    int64_t kib = 0;
    status >> kib;
    return kib << 10;
  }
  ADD_FAILURE() << "no RssAnon of process " << pid;
  return 0;
}

TEST_F(TcpUnauthenticated, ThousandSilentConnections_CostLittleAndDelayNoCall) {
  const pid_t daemon = cluster_->daemon(0).pid();
  const int64_t before = OwnMemory(daemon);
  std::vector<pollfd> silent;
  std::vector<UniqueFd> sockets;
  for (int i = 0; i < kSilent; ++i) {
    sockets.push_back(ConnectTcp(tcp_port_));
    ASSERT_TRUE(sockets.back()) << i;
    silent.push_back({.fd = sockets.back().get(), .events = POLLIN, .revents = 0});
  }
  // All were taken in: all but the last few made room for the next.
  EXPECT_TRUE(testing::Eventually([&] {
    (void)poll(silent.data(), silent.size(), 0);
    return std::ranges::count_if(silent, [](const pollfd& one) { return one.revents != 0; }) >= kSilent - 64;
  }));
  EXPECT_LT(OwnMemory(daemon) - before, kMaxBytesForSilent);
  ASSERT_NO_FATAL_FAILURE(ExpectServed());
  sockets.clear();

  const int64_t now = OwnMemory(daemon);
  for (int i = 0; i < kSilent; ++i) {
    sockets.push_back(ConnectTcp(grpc_port_));
    ASSERT_TRUE(sockets.back()) << i;
  }
  ASSERT_NO_FATAL_FAILURE(ExpectServed());  // a call that comes after them is let in after them
  EXPECT_LT(OwnMemory(daemon) - now, kMaxBytesForSilentAtGrpc);
}

}  // namespace
}  // namespace tensorcast
