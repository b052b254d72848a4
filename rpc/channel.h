// Channels to a daemon or a global store, with interceptors, keepalive, message limits and credentials; and
// checks whether a server answers at an address.
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
  absl::Duration keepalive_timeout = absl::Seconds(10);     // max wait for an answer; then it is dead
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
// family (IPv4 or IPv6): the family of the first name that can be resolved. Leaves out names that cannot be
// resolved, with a warning; the result is empty if there are only such names. Returns a single address
// unchanged, since gRPC resolves its name at each connection. Blocks.
std::string LookUpNames(const std::string& address);

// `address` is host:port or unix:/path. Never fails and does not wait: calls to a wrong or silent address
// fail with UNAVAILABLE. Thread-safe, as the stubs made on it are. HTTP proxies from the environment are not
// used.
//
// Several host:port, separated by commas, are servers of one service; only one of them listens at a time. The
// channel calls the first one that listens, and changes to another one when it no longer answers. MakeChannel
// resolves their names once, which may block (LookUpNames).
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const ChannelOptions& options = {});

// Connects if needed, and waits for the handshakes of the connection; makes no call. UNAVAILABLE if the
// server ends the connection before that; DEADLINE_EXCEEDED or CANCELLED when the context ends. `what` names
// the operation and the server in errors. gRPC shares connections within a process, so this may use a
// connection that the server has already left; only a call detects that.
absl::Status AwaitConnection(grpc::Channel& channel, const RequestContext& context, std::string_view what);

// Makes a new connection to `address`, whatever connections exist, and asks the standard health service. OK
// when the server serves; UNAVAILABLE or DEADLINE_EXCEEDED when it does not answer; any other error is the
// server's answer. Blocks. Thread-safe.
absl::Status CheckHealth(const std::string& address, absl::Duration timeout,
                         std::shared_ptr<const Credentials> credentials = nullptr);

}  // namespace tensorcast::rpc
