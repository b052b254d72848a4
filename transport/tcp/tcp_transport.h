// The TCP transport: pulls between hosts over plain sockets, by a protocol of our own (FORMAT.md). It needs
// no hardware and no library, and nothing that reaches its port can make it write to memory, abort or hang.
//
// A few threads, each an epoll loop, carry all connections of all pulls and servings. Thread-safe; callbacks
// run on those threads, those of one pull perhaps on several of them at a time.
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
  // "host:port" to serve on; port 0 takes a free one. Empty: this transport only receives.
  std::string listen = "127.0.0.1:0";
  // Where receivers connect to, as "host:port", the one to be tried first at the front; port 0: the one that
  // is listened on. Empty: `listen`. Needed when that is a wildcard.
  std::vector<std::string> advertise;
  // Loops; 0: one a core, at most 4.
  int threads = 0;
  // Of one pull; 0: as many as there are loops.
  int connections = 0;
  std::string congestion_control;  // the kernel's name of one, "bbr"; empty: the host's choice
  // Bytes a second, of all servings and of all pulls; 0: no limit.
  uint64_t send_limit = 0;
  uint64_t receive_limit = 0;
  // Closes the connection to a peer that takes nothing, or to a host that does not answer, for so long.
  absl::Duration peer_timeout = absl::Seconds(10);
  // Max time to connect, whatever the context's deadline.
  absl::Duration connect_timeout = absl::Seconds(10);
  // Closes a connection that sends no HELLO for so long.
  absl::Duration hello_timeout = absl::Seconds(5);
  // This process's identity: connections use TLS, and both ends show certificates. Null: not encrypted.
  std::shared_ptr<const security::Identity> identity;
  // Threads on which images that are not in place are read.
  int serving_threads = 4;
};

class TcpTransport : public Transport {
 public:
  // UNAVAILABLE when the address cannot be listened on; INVALID_ARGUMENT for malformed options.
  static absl::StatusOr<std::unique_ptr<TcpTransport>> Create(const TcpOptions& options);
  // REQUIRES: its pulls and servings are destroyed. Not in a callback.
  ~TcpTransport() override;

  std::string_view name() const override;  // "tcp"
  absl::Status RegisterMemory(std::byte* base, uint64_t bytes) override;
  absl::StatusOr<std::unique_ptr<Serving>> Serve(std::shared_ptr<ServedImage> image,
                                                 std::string_view receiver) override;
  absl::StatusOr<std::unique_ptr<Pull>> Connect(const RequestContext& context,
                                                std::string_view descriptor) override;

  // "host:port" that receivers connect to first; empty when it only receives.
  const std::string& address() const;

 private:
  struct State;
  explicit TcpTransport(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

// As transport/lanes lists it.
Lane TcpLane();

}  // namespace tensorcast::transport
