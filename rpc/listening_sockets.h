// The sockets for one address that a server listens on: one for a unix path, or one for each address of this
// host to which a name resolves. Internal to this folder; thread-compatible.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"
#include "base/posix/unix_socket.h"

namespace tensorcast::rpc {

class ListeningSockets {
 public:
  // `address` is host:port (port 0: any free one) or unix:/path. The IPv6 wildcard [::] includes IPv4. No
  // other server can share the port. `unix_groups`: see UnixListener. `backlog`: the max number of TCP peers
  // that wait in the kernel. INVALID_ARGUMENT for a text that is not an address; ALREADY_EXISTS when a
  // running process listens on the unix path; UNAVAILABLE when the port is in use.
  static absl::StatusOr<ListeningSockets> Open(const std::string& address,
                                               const std::vector<gid_t>& unix_groups, int backlog);

  // Non-blocking.
  const std::vector<int>& sockets() const { return sockets_; }
  // The address to connect to, with the chosen port.
  const std::string& address() const { return address_; }
  bool is_unix() const { return unix_ != nullptr; }
  // Stops listening and removes the file of a unix socket. Idempotent.
  void Close();

 private:
  ListeningSockets() = default;
  absl::Status OpenTcp(const std::string& address, int backlog);

  std::string address_;
  std::vector<int> sockets_;
  std::vector<UniqueFd> tcp_;
  std::unique_ptr<UnixListener> unix_;
};

}  // namespace tensorcast::rpc
