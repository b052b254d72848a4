// Channels to a daemon or a global store: interceptors, keepalive, message limits and credentials in one
// place; and whether a server answers at an address.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "security/roles.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace tensorcast::rpc {

class Credentials;

// Manifests and inventories are streamed in pieces, so no single message comes near this.
inline constexpr int kMaxMessageBytes = 16 << 20;

struct ChannelOptions {
  absl::Duration keepalive_interval = absl::Seconds(20);    // pings while calls are open
  absl::Duration keepalive_timeout = absl::Seconds(10);     // no answer for this long: the connection is dead
  absl::Duration max_reconnect_backoff = absl::Seconds(1);  // shorter for several, and for unix paths
  int max_message_bytes = kMaxMessageBytes;
  // Of this process, for host:port; null: the connection is in clear. Those to unix paths always are.
  std::shared_ptr<const Credentials> credentials;
  // The roles that a server may have, with credentials.
  security::RoleSet servers =
      security::Only(security::Role::kNode) | security::Only(security::Role::kGlobalStore);
  std::string server_name;  // its name in that role; empty: any
  std::string session_id;   // told to the server with each call, for its spans; empty: none
  bool stands_by = false;   // others may take its place: as with several addresses
};

// Of several host:port, with commas between: what they mean now, as numbers, likewise; of one family, that of
// the first that is known. Names that cannot be resolved are left out, with a warning; empty: all of them.
// One alone stays as it is: gRPC looks its name up again whenever it connects. Blocks.
std::string LookUpNames(const std::string& address);

// `address` is host:port or unix:/path. Never fails and does not wait: a bad or silent address shows as
// UNAVAILABLE when it is called. Thread-safe, as the stubs made on it are. HTTP proxies from the environment
// are not used.
//
// Several of host:port, with commas between, are those of one service that one of them gives at a time: the
// first that listens is called, and another as soon as it does not answer any more. Their names are looked
// up here and now, which may block, and not again (LookUpNames).
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const ChannelOptions& options = {});

// Connects, unless that is done, and waits for the handshakes of the connection to end; makes no call.
// UNAVAILABLE when the server ends the connection before; DEADLINE_EXCEEDED or CANCELLED with the context.
// gRPC shares connections within a process: one that its server has left is found broken by a call only.
absl::Status AwaitConnection(grpc::Channel& channel, const RequestContext& context);

// Asks by the standard health service. Connects to `address` anew, whatever connections to it exist, and
// asks. OK when it serves; UNAVAILABLE or DEADLINE_EXCEEDED says that it does not answer; another error is
// its answer. Blocks. Thread-safe.
absl::Status CheckHealth(const std::string& address, absl::Duration timeout,
                         std::shared_ptr<const Credentials> credentials = nullptr);

}  // namespace tensorcast::rpc
