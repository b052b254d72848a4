// The daemon's end of the handle socket. It turns one-use tickets into leases that connections hold, and
// receives the memory that clients offer for a put.
//
// One thread runs all connections (epoll) and never blocks on a client. A client must run as the daemon's
// user, as root, or in an allowed group (CheckPeer). A lease ends with its connection, or, if the client may
// have opened the device memory of the lease, with the client's process (pidfd). Thread-safe.
#pragma once

#include <sys/types.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/config_reader.h"
#include "core/handles/handles.h"

namespace tensorcast {

// The current numbers of connections, leases and tickets. Arrays are by kind of memory, in the order of
// ReplicaHandles::memory: host, device, file.
struct HandleCounts {
  int client_connections = 0;  // includes peers that have not sent a request yet
  int daemon_connections = 0;
  std::array<int, 3> client_leases{};
  std::array<int, 3> daemon_leases{};
  std::array<int, 3> tickets{};
};

class HandleServer {
 public:
  struct Options {
    std::string path;                   // of the unix socket; the socket file of a dead process is replaced
    std::vector<gid_t> allowed_groups;  // in addition to the daemon's own user
    absl::Duration ticket_ttl = absl::Seconds(10);
    // Max time for a client to send its request and to read the answer. After the answer the connection
    // may be idle.
    absl::Duration exchange_timeout = absl::Seconds(10);
    // Max memory of all rings together; further puts wait for a ring.
    uint64_t put_rings_bytes = uint64_t{256} << 20;
    // A client loses its ring if it fills no slot for this time, or does not start its put within this time.
    absl::Duration stall_timeout = absl::Seconds(10);
    OnHostClaim on_host_claim;  // may be empty
    // Clients above this number get RESOURCE_EXHAUSTED, and so do clients for which only reserved descriptors
    // are left (base/posix/process_limits.h).
    int max_connections = 16384;

    void FromConfig(ConfigReader& config) { config.Read("daemon.put_rings", put_rings_bytes); }
  };

  // ALREADY_EXISTS if a living process listens on the path, or if the path is a file that is not a socket.
  static absl::StatusOr<std::unique_ptr<HandleServer>> Start(const Options& options);
  // Closes all connections, releases their leases and offers, and removes the socket's file. The destructor
  // of a Claim::hold must not destroy the server.
  ~HandleServer();
  HandleServer(const HandleServer&) = delete;
  HandleServer& operator=(const HandleServer&) = delete;

  const std::string& path() const;

  // Issues a ticket for `claim`, valid once and for ticket_ttl. If the ticket expires, the server releases
  // `claim.hold`.
  std::string IssueTicket(Claim claim);

  // Removes and returns the offer with this token. NOT_FOUND if the token is unknown, if the offer was
  // already taken, or if the client's connection has ended.
  absl::StatusOr<Offer> TakeOffer(std::string_view token);

  // Marks a replica's bytes as damaged. The replica's tickets become invalid. The server sends `why` (a
  // DATA_LOSS) to each client with a claim on the replica. The clients keep their claims. Returns the number
  // of these clients. Must not be called on the server's thread.
  int Fence(std::string_view replica_id, const absl::Status& why);

  // The processes with a claim on this replica, ascending, one element for each claim; 0 is an unknown
  // process. Leaves out claims if `except` (may be null) returns true for their hold. `except` is called
  // on the server's thread. HoldersOf must not be called on the server's thread.
  std::vector<pid_t> HoldersOf(std::string_view replica_id,
                               const std::function<bool(const void* hold)>& except = nullptr) const;

  uint64_t put_ring_bytes() const;  // of all existing rings
  int put_rings_awaited() const;    // puts that wait for a ring; may include puts that have just ended
  int connections() const;
  int leases() const;   // claimed tickets
  int tickets() const;  // unclaimed tickets
  HandleCounts counts() const;

 private:
  class Loop;
  explicit HandleServer(std::unique_ptr<Loop> loop);

  const std::unique_ptr<Loop> loop_;
};

}  // namespace tensorcast
