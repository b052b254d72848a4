// One end of a connection of the pull protocol that says whatever a test wants and keeps what it hears.
// Thread-safe, but for Connect and Listen, of which one is called once. Every call has an end.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "core/memory/host_pool.h"
#include "gtest/gtest.h"
#include "transport/pull/wire.h"

namespace tensorcast::transport {

class RawPeer {
 public:
  RawPeer();
  ~RawPeer();

  // To a source at "host:port".
  void Connect(const std::string& address);
  // The address at which one peer may connect.
  std::string Listen();

  void Send(const pull::Frame& message);
  void SendBytes(unsigned id, std::string bytes);
  // Its length is that of `bytes`.
  void SendPiece(pull::Data head, ConstHostSpan bytes);
  // Calls `sends`. Nothing that arrives is looked at before it returns: a rendezvous that it begins is still
  // under way when it sends what follows.
  void AtOnce(const std::function<void()>& sends);

  // The next message, or FAILED_PRECONDITION when the connection was closed instead.
  absl::StatusOr<pull::Frame> Next();
  bool ClosedByPeer() { return Next().status().code() == absl::StatusCode::kFailedPrecondition; }
  // The next message; fails the test, and is a default one, when it is none of that kind.
  template <typename Message>
  Message NextAs() {
    const absl::StatusOr<pull::Frame> message = Next();
    EXPECT_TRUE(message.ok()) << message.status();
    if (!message.ok()) return {};
    const auto* expected = std::get_if<Message>(&*message);
    EXPECT_NE(expected, nullptr) << "a message of kind " << message->index();
    return expected != nullptr ? *expected : Message{};
  }
  // True once so many bytes of images arrived.
  bool WaitForData(uint64_t bytes);

 private:
  class Connection;
  const std::unique_ptr<Connection> connection_;
};

}  // namespace tensorcast::transport
