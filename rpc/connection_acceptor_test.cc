// How fast a server with certificates accepts connections while it is behind with their handshakes.
#include "rpc/connection_acceptor.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/address.h"
#include "base/posix/unique_fd.h"
#include "base/testing/eventually.h"
#include "rpc/credentials.h"
#include "security/testing/test_authority.h"

namespace tensorcast::rpc::connection_acceptor_test {
namespace {

using security::testing::TestAuthority;

constexpr size_t kPeers = 100;  // more than the handshakes that may wait, fewer than the kernel's queue takes

// Takes the connections of an acceptor as a gRPC server would, and reads none of them until told to.
class HeldConnections {
 public:
  explicit HeldConnections(std::shared_ptr<const Credentials> credentials)
      : acceptor_(ConnectionAcceptor::Listen({.listen = {"127.0.0.1:0"},
                                              .unix_groups = {},
                                              .max_connections = 1000,
                                              .credentials = std::move(credentials)})
                      .value()) {}
  ~HeldConnections() { acceptor_->Stop(); }

  void Start() {
    const absl::Status started = acceptor_->Start([this](int, UniqueFd connection) {
      absl::MutexLock lock(&mutex_);
      connections_.push_back(std::move(connection));
    });
    EXPECT_TRUE(started.ok()) << started;
  }

  // A peer that connects and sends the first byte of its handshake.
  UniqueFd Connect() const {
    const SocketAddress to = ResolveAddress(*ParseHostPort(acceptor_->addresses().front())).value();
    UniqueFd peer(socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(peer.get(), to.get(), to.length), 0);
    EXPECT_EQ(send(peer.get(), "x", 1, MSG_NOSIGNAL), 1);
    return peer;
  }

  size_t Count() {
    absl::MutexLock lock(&mutex_);
    return connections_.size();
  }
  void ReadAll() {
    absl::MutexLock lock(&mutex_);
    char byte;
    for (const UniqueFd& one : connections_) recv(one.get(), &byte, 1, MSG_DONTWAIT);
  }

 private:
  const std::unique_ptr<ConnectionAcceptor> acceptor_;
  absl::Mutex mutex_;
  std::vector<UniqueFd> connections_ ABSL_GUARDED_BY(mutex_);
};

TEST(ConnectionAcceptor, UnreadHandshakes_PauseAcceptingUntilTheyAreRead) {
  const TestAuthority authority;
  HeldConnections secured(std::make_shared<Credentials>(authority.Load("global-store")));
  HeldConnections plain(nullptr);
  secured.Start();
  plain.Start();
  std::vector<UniqueFd> peers;
  for (size_t i = 0; i < kPeers; ++i) peers.push_back(secured.Connect());
  for (size_t i = 0; i < kPeers; ++i) peers.push_back(plain.Connect());
  ASSERT_TRUE(testing::Eventually([&] { return plain.Count() == kPeers; }));
  EXPECT_GT(secured.Count(), 0u);
  EXPECT_LT(secured.Count(), kPeers);
  EXPECT_TRUE(testing::Eventually([&] {
    secured.ReadAll();
    return secured.Count() == kPeers;
  }));
}

TEST(ConnectionAcceptor, PeerThatLeftTheQueue_IsNotHandedOn) {
  HeldConnections held(nullptr);
  held.Connect();  // and leaves
  const UniqueFd stays = held.Connect();
  held.Start();
  ASSERT_TRUE(testing::Eventually([&] { return held.Count() > 0; }));
  EXPECT_EQ(held.Count(), 1u);
}

}  // namespace
}  // namespace tensorcast::rpc::connection_acceptor_test
