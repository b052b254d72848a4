// Which processes may use an endpoint that this process listens on, and what they may do there. A server logs
// this when it starts, and `tensorcast status` shows it. Stateless; thread-safe.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "security/roles.h"

namespace tensorcast::rpc {

class Credentials;

struct EndpointAccess {
  std::string endpoint;   // the address, "unix:/path" or "host:port"
  std::string callers;    // for people: "user root (uid 0), mode 0600"
  std::string role;       // for people: what they may do
  bool in_clear = false;  // a TCP port without certificates

  // For a line of a log: "unix:/run/daemon.sock: user root (uid 0), mode 0600: operator, every call".
  std::string ToString() const;
};

// The access to a gRPC address. At a unix socket, this process's user and members of `unix_groups` have
// `unix_roles`. `credentials` null: a TCP port is in clear.
EndpointAccess AccessOf(const std::string& address, const std::vector<gid_t>& unix_groups,
                        security::RoleSet unix_roles, const Credentials* credentials);

// "ada (uid 1000)"; "uid 1000" where the user has no name.
std::string UserText(uid_t user);

// The users that reach a unix socket: this process's, root, and the members of these groups.
std::string CallersOfSocket(const std::string& path, const std::vector<gid_t>& groups);
// What reaches a TCP port: holders of certificates, or where it is in clear every process.
std::string CallersOfPort(const std::string& address, std::string_view certified_as,
                          const Credentials* credentials);

}  // namespace tensorcast::rpc
