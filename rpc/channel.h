// Channels to a daemon or a global store, and a check whether a server answers at an address.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "security/roles.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace tensorcast::rpc {

class Credentials;

// Manifests and inventories are streamed in pieces, so single messages are far smaller.
inline constexpr int kMaxMessageBytes = 16 << 20;

struct ChannelOptions {
  absl::Duration keepalive_interval = absl::Seconds(20);    // pings while calls are open
  absl::Duration keepalive_timeout = absl::Seconds(10);     // ends a connection with an unanswered ping
  absl::Duration max_reconnect_backoff = absl::Seconds(1);  // shorter for several addresses, and for unix
                                                            // paths
  int max_message_bytes = kMaxMessageBytes;
  // The credentials of this process, for host:port; null: unencrypted. Connections to unix paths are always
  // unencrypted.
  std::shared_ptr<const Credentials> credentials;
  // With credentials: the roles that a server may have.
  security::RoleSet servers =
      security::Only(security::Role::kNode) | security::Only(security::Role::kGlobalStore);
  std::string server_name;  // the server's name in that role; empty: any
  std::string session_id;   // sent to the server with each call, for its spans; empty: none
  bool stands_by = false;   // other servers may replace this server, as with several addresses
};

// Resolves a comma-separated list of host:port to a list of numeric addresses. All addresses are of one
// family (IPv4 or IPv6): the family of the first name that can be resolved. Leaves out a name that cannot be
// resolved, with a warning. The list is empty if all are left out. Keeps a single address unchanged. Blocks.
std::string LookUpNames(const std::string& address);

// `address` is host:port or unix:/path. Does not wait for a connection: calls to a wrong or silent address
// fail with UNAVAILABLE. Ignores HTTP proxies of the environment. The channel and its stubs are thread-safe.
//
// `address` may also be several host:port, separated by commas. One of these servers listens at a time, and
// the channel finds it. For such a list MakeChannel resolves the names once, which may block
// (LookUpNames).
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const ChannelOptions& options = {});

// Connects if needed, and waits for the handshakes of the connection. UNAVAILABLE if the server refuses or
// ends the connection; DEADLINE_EXCEEDED or CANCELLED when the context ends. `what` names the operation and
// the server in errors. Makes no call: OK does not prove that the server still answers on an older
// connection.
absl::Status AwaitConnection(grpc::Channel& channel, const RequestContext& context, std::string_view what);

// Makes a new connection to `address` and calls the standard health service. OK: the server serves.
// UNAVAILABLE or DEADLINE_EXCEEDED: the server does not answer. Any other error is the server's answer.
// Blocks. Thread-safe.
absl::Status CheckHealth(const std::string& address, absl::Duration timeout,
                         std::shared_ptr<const Credentials> credentials = nullptr);

}  // namespace tensorcast::rpc
