// Accepts the clients of the handle socket, and decides for each client whether the server serves it. The
// decision depends on the client's user and groups, the number of connections, and the free descriptors. If
// no descriptor is free, the client is accepted with a spare descriptor, so that the client gets an error.
//
// Used only on the server's thread; never waits. The client gets each error that concerns only it; all other
// errors of the system are logged. Internal to this folder.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/posix/process_limits.h"
#include "base/posix/unique_fd.h"
#include "base/posix/unix_socket.h"

namespace tensorcast {

class ClientAcceptor {
 public:
  // `socket` is non-blocking. The server serves the client if `verdict` is OK, else it sends `verdict`.
  using OnClient = absl::FunctionRef<void(UniqueFd socket, const absl::Status& verdict)>;

  // `connections` has the current number of the server's connections, and must outlive this object.
  ClientAcceptor(std::unique_ptr<UnixListener> listener, std::vector<gid_t> allowed_groups,
                 int max_connections, const std::atomic<int>* connections);

  int fd() const { return listener_->fd(); }  // readable when clients wait

  // Accepts a limited number of waiting clients, and calls `on_client` for each client. Returns false if a
  // client waits but the system cannot accept it. The server must then pause, because fd() stays readable.
  bool Accept(OnClient on_client);

 private:
  bool RefuseWithTheSpare(OnClient on_client);
  absl::Status OutOfDescriptors() const;
  absl::Status CheckRoom(int socket) const;

  const std::unique_ptr<UnixListener> listener_;
  const std::vector<gid_t> allowed_groups_;
  const int max_connections_;
  const std::atomic<int>& connections_;
  SpareDescriptor spare_;
};

}  // namespace tensorcast
