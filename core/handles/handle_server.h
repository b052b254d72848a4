// The daemon's end of the handle socket: turns one-use tickets into leases held by connections, and receives
// the memory that clients hand over for a put.
//
// One thread runs every connection (epoll, never blocking on a peer). Peers must be of the daemon's own user
// or of an allowed group (SO_PEERCRED). A client that dies closes its connection, and that releases its lease
// at once; a lease on device memory that the client may have open is held until the process itself is gone
// (pidfd). Thread-safe.
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

// The current numbers. Arrays are by kind of memory, in the order of ReplicaHandles::memory:
// host, device, file.
struct HandleCounts {
  int client_connections = 0;  // of clients; includes peers that have not sent a request yet
  int daemon_connections = 0;
  std::array<int, 3> client_leases{};
  std::array<int, 3> daemon_leases{};
  std::array<int, 3> tickets{};
};

class HandleServer {
 public:
  struct Options {
    std::string path;                   // of the unix socket; replaced if a dead one is there
    std::vector<gid_t> allowed_groups;  // beside the daemon's own user
    absl::Duration ticket_ttl = absl::Seconds(10);
    // Max time for a client to send its request and to read the answer. After that its connection has no
    // limit.
    absl::Duration exchange_timeout = absl::Seconds(10);
    // Max memory of the rings of all puts together; a put beyond that waits for its turn.
    uint64_t put_rings_bytes = uint64_t{256} << 20;
    // A client loses its ring if it fills no slot for this time, or does not start its put.
    absl::Duration stall_timeout = absl::Seconds(10);
    OnHostClaim on_host_claim;    // may be empty
    int max_connections = 16384;  // more, and those left with reserved descriptors only, get
                                  // RESOURCE_EXHAUSTED

    void FromConfig(ConfigReader& config) { config.Read("daemon.put_rings", put_rings_bytes); }
  };

  // ALREADY_EXISTS when a living process listens on the path, or a file that is not a socket is there.
  static absl::StatusOr<std::unique_ptr<HandleServer>> Start(const Options& options);
  // Closes every connection, releasing what they held, and removes the socket's file. Not to be called by the
  // destructor of a Claim's hold.
  ~HandleServer();
  HandleServer(const HandleServer&) = delete;
  HandleServer& operator=(const HandleServer&) = delete;

  const std::string& path() const;

  // Issues a ticket for one claim, valid for ticket_ttl. When the ticket expires, the server releases
  // `claim.hold`.
  std::string IssueTicket(Claim claim);

  // Takes the offer of this token; possible once. NOT_FOUND when there is no such offer, or when the client's
  // connection is closed.
  absl::StatusOr<Offer> TakeOffer(std::string_view token);

  // Marks a replica's bytes as damaged: its tickets become invalid, and each client with a claim is told
  // `why` (a DATA_LOSS), but keeps the memory until it ends its claim. Returns the number of clients that
  // were told. Must not be called on the server's thread.
  int Fence(std::string_view replica_id, const absl::Status& why);

  // The processes with a claim on this replica, ascending; 0 stands for unknown processes. `except` is called
  // on the server's thread with the hold of each claim, and leaves out the claims for which it is true; null:
  // leaves out none. HoldersOf must not be called on the server's thread.
  std::vector<pid_t> HoldersOf(std::string_view replica_id,
                               const std::function<bool(const void* hold)>& except = nullptr) const;

  uint64_t put_ring_bytes() const;  // of all existing rings
  int put_rings_awaited() const;    // puts that wait for one, and some that have gone meanwhile
  int connections() const;
  int leases() const;   // claimed tickets
  int tickets() const;  // unclaimed ones
  HandleCounts counts() const;

 private:
  class Loop;
  explicit HandleServer(std::unique_ptr<Loop> loop);

  const std::unique_ptr<Loop> loop_;
};

}  // namespace tensorcast
