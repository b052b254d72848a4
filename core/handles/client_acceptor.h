// Accepts the clients that connect to the handle socket, and decides for each of them whether the server may
// and can serve it: by its user and groups, the number of connections, and the descriptors that are left. A
// client that connects when no descriptor is left is accepted with a spare descriptor, so that it gets the
// reason instead of waiting in the listener's queue.
//
// Used only on the server's thread, and never waits. Errors are verdicts, which the server sends to the
// client; an error of the system that concerns no client is logged. Internal to this folder.
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
  // Called with a connected client, on a non-blocking socket. If `verdict` is OK, the server serves the
  // client; otherwise the server refuses the client with `verdict`.
  using OnClient = absl::FunctionRef<void(UniqueFd socket, const absl::Status& verdict)>;

  // `connections` is the number of connections that the server has, and must outlive this object.
  ClientAcceptor(std::unique_ptr<UnixListener> listener, std::vector<gid_t> allowed_groups,
                 int max_connections, const std::atomic<int>* connections);

  int fd() const { return listener_->fd(); }  // readable when clients wait

  // Calls `on_client` for clients that wait; one call of Accept takes a limited number of clients. Returns
  // false if the system accepts no client now. The listener then stays readable, so the server must pause.
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
