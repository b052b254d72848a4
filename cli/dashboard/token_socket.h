// The unix socket by which `tensorcast dashboard token` gets a one-time login URL from this user's dashboard.
// No other user may open the socket.
//
// Thread-safe. Errors name the socket.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"
#include "base/posix/unix_socket.h"

namespace tensorcast::dashboard {

// The socket of the dashboard on this port, in a separate folder below DefaultSocketFolder
// (base/posix/socket_folders.h).
std::string TokenSocketPath(uint16_t port);

class TokenSocket {
 public:
  // Starts a thread that sends the result of `new_address` to each process of this user that connects.
  // ALREADY_EXISTS if another process listens on `path`. RESOURCE_EXHAUSTED if the thread cannot be started.
  static absl::StatusOr<std::unique_ptr<TokenSocket>> Listen(const std::string& path,
                                                             std::function<std::string()> new_address);
  ~TokenSocket();
  TokenSocket(const TokenSocket&) = delete;
  TokenSocket& operator=(const TokenSocket&) = delete;

 private:
  TokenSocket(std::unique_ptr<UnixListener> listener, UniqueFd stop,
              std::function<std::string()> new_address);
  void Serve();

  const std::unique_ptr<UnixListener> listener_;
  const UniqueFd stop_;  // an eventfd
  const std::function<std::string()> new_address_;
  std::thread thread_;
};

// Connects to the socket and returns the login URL from the dashboard. UNAVAILABLE if no dashboard listens on
// `path`, or if the dashboard does not answer.
absl::StatusOr<std::string> AskForAddress(const std::string& path);

}  // namespace tensorcast::dashboard
