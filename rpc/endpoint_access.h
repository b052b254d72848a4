// Describes which processes may use an endpoint of this process, and in which role. A server logs this when
// it starts, and `tensorcast status` shows it. Stateless; thread-safe.
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
  std::string role;       // for people: the role and its rights
  bool in_clear = false;  // a TCP port without certificates

  // For a log line: "unix:/run/daemon.sock: user root (uid 0), mode 0600: operator, every call".
  std::string ToString() const;
};

// Describes the access to a gRPC address. At a unix socket, this process's user and members of `unix_groups`
// have `unix_roles`. If `credentials` is null, a TCP port is unencrypted.
EndpointAccess AccessOf(const std::string& address, const std::vector<gid_t>& unix_groups,
                        security::RoleSet unix_roles, const Credentials* credentials);

// "ada (uid 1000)"; "uid 1000" for a user without a name.
std::string UserText(uid_t user);

// The users of a unix socket: this process's user, root, and the members of these groups.
std::string CallersOfSocket(const std::string& path, const std::vector<gid_t>& groups);
// The callers of a TCP port: holders of certificates, or every process if the port is unencrypted.
// `certified_as`: words for the holders of certificates.
std::string CallersOfPort(const std::string& address, std::string_view certified_as,
                          const Credentials* credentials);

}  // namespace tensorcast::rpc
