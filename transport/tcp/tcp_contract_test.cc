// The transport contract over TCP: by one connection, by several on several threads, and by TLS.
#include <cstdlib>
#include <optional>

#include "absl/log/check.h"
#include "security/testing/test_authority.h"
#include "transport/tcp/raw_peer.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/testing/transport_contract.h"

namespace tensorcast::transport {
namespace {

// A source in another process has the files of this one's authority, told in its environment.
constexpr const char* kFilesVariables[] = {"TCP_TEST_CA", "TCP_TEST_CERTIFICATE", "TCP_TEST_KEY"};

// Made when they are first asked for, and gone with main().
std::unique_ptr<security::testing::TestAuthority> authority;
std::shared_ptr<security::Identity> identity;

security::Identity::Files NewFiles() {
  authority = std::make_unique<security::testing::TestAuthority>();
  const security::Identity::Files files = authority->Issue("node/a");
  setenv(kFilesVariables[0], files.ca.c_str(), 1);
  setenv(kFilesVariables[1], files.certificate.c_str(), 1);
  setenv(kFilesVariables[2], files.key.c_str(), 1);
  return files;
}

std::shared_ptr<security::Identity> TestIdentity() {
  if (identity == nullptr) {
    const bool told = getenv(kFilesVariables[0]) != nullptr;
    identity =
        security::Identity::Load(told ? security::Identity::Files{.ca = getenv(kFilesVariables[0]),
                                                                  .certificate = getenv(kFilesVariables[1]),
                                                                  .key = getenv(kFilesVariables[2])}
                                      : NewFiles())
            .value();
  }
  return identity;
}

std::unique_ptr<Transport> NewTcpTransport(const std::string& lane) {
  TcpOptions options{.threads = lane == "tcp" ? 1 : 3};
  if (lane == "tcp-tls") options.identity = TestIdentity();
  auto transport = TcpTransport::Create(options);
  CHECK_OK(transport.status());
  return *std::move(transport);
}

class TcpPeer : public ProtocolPeer {
 public:
  void Connect(const std::string& address) override { peer_ = tcp::RawPeer::ConnectTo(address); }
  std::string Listen() override { return listener_.emplace().address(); }
  void Send(const pull::Frame& frame) override { peer().Send(frame); }
  void SendPiece(const pull::Data& head, std::string_view piece) override { peer().SendPiece(head, piece); }
  pull::Frame Next() override { return peer().Next(); }
  std::string ReadBytes(size_t bytes) override { return peer().ReadBytes(bytes); }
  bool IsClosed() override { return peer().IsClosed(); }

 private:
  tcp::RawPeer& peer() {
    if (listener_.has_value()) peer_ = listener_->Accept();
    listener_.reset();
    return peer_;
  }
  std::optional<tcp::RawListener> listener_;  // until its receiver has come
  tcp::RawPeer peer_;
};

const LaneUnderTest kOneConnection{
    .lane = "tcp", .create = NewTcpTransport, .new_peer = [] { return std::make_unique<TcpPeer>(); }};
const auto kLanes =
    ::testing::Values(kOneConnection, LaneUnderTest{.lane = "tcp-several", .create = NewTcpTransport},
                      LaneUnderTest{.lane = "tcp-tls", .create = NewTcpTransport});

std::string LaneName(const ::testing::TestParamInfo<LaneUnderTest>& info) {
  if (info.param.lane == "tcp") return "OneConnection";
  return info.param.lane == "tcp-tls" ? "Tls" : "SeveralConnections";
}
INSTANTIATE_TEST_SUITE_P(Tcp, TransportContract, kLanes, LaneName);
INSTANTIATE_TEST_SUITE_P(Tcp, FillingContract, kLanes, LaneName);
INSTANTIATE_TEST_SUITE_P(Tcp, ProtocolContract, ::testing::Values(kOneConnection), LaneName);
INSTANTIATE_TEST_SUITE_P(Tcp, SourceProcessContract, kLanes, LaneName);

}  // namespace
}  // namespace tensorcast::transport

int main(int argc, char** argv) {
  if (tensorcast::transport::MaybeRunSourceProcess(argc, argv, tensorcast::transport::NewTcpTransport)) {
    return 0;
  }
  ::testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  tensorcast::transport::identity.reset();
  tensorcast::transport::authority.reset();
  return result;
}
