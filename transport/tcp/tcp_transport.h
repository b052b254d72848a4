// The TCP transport. It speaks the pull protocol (pull/FORMAT.md). Malicious bytes from a peer cannot make
// the transport abort, hang, or write outside the destinations of its fetches.
//
// A few threads with epoll loops serve all connections. Thread-safe. Callbacks run on these threads.
// Callbacks of one pull may run at the same time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "transport/lane.h"
#include "transport/transport.h"

namespace tensorcast::security {
class Identity;
}

namespace tensorcast::transport {

struct TcpOptions {
  // "host:port" to serve on; port 0: any free port. Empty: this transport only receives.
  std::string listen = "127.0.0.1:0";
  // The addresses that receivers try in this order, as "host:port". Port 0: the listening port. Empty:
  // `listen`. Must not be empty if `listen` is a wildcard address.
  std::vector<std::string> advertise;
  // The number of loops; 0: one per core, at most 4.
  int threads = 0;
  // Max connections of one pull; 0: the number of loops. A pull of a small image uses fewer connections.
  int connections = 0;
  std::string congestion_control;  // the kernel's name, such as "bbr"; empty: the host's default
  // Max bytes per second of all servings together, and of all pulls together; 0: no limit.
  uint64_t send_limit = 0;
  uint64_t receive_limit = 0;
  // A connection breaks when the peer takes no bytes, or its host does not answer, for this time.
  absl::Duration peer_timeout = absl::Seconds(10);
  // Max time to connect, even if the context's deadline is later.
  absl::Duration connect_timeout = absl::Seconds(10);
  // Closes a connection that has sent no HELLO within this time.
  absl::Duration hello_timeout = absl::Seconds(5);
  // This process's certificate and key, for TLS on all connections. Null: no encryption.
  std::shared_ptr<const security::Identity> identity;
  // Threads that read images that are not in place (ServedImage::Read).
  int serving_threads = 4;
};

class TcpTransport : public Transport {
 public:
  // UNAVAILABLE if this process cannot listen on the address; INVALID_ARGUMENT for malformed options.
  static absl::StatusOr<std::unique_ptr<TcpTransport>> Create(const TcpOptions& options);
  // REQUIRES: its pulls and servings are destroyed; not within a callback.
  ~TcpTransport() override;

  std::string_view name() const override;  // "tcp"
  absl::Status RegisterMemory(std::byte* base, uint64_t bytes) override;
  absl::StatusOr<std::unique_ptr<Serving>> Serve(std::shared_ptr<ServedImage> image,
                                                 std::string_view receiver) override;
  absl::StatusOr<std::unique_ptr<Pull>> Connect(const RequestContext& context,
                                                std::string_view descriptor) override;

  // The "host:port" that receivers try first; empty if this transport only receives.
  const std::string& address() const;

 private:
  struct State;
  explicit TcpTransport(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

// The lane "tcp", for the list in transport/lanes.
Lane TcpLane();

}  // namespace tensorcast::transport
