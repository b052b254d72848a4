#include "base/posix/unix_peer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast {
namespace {

absl::StatusOr<std::vector<gid_t>> PeerGroups(int socket) {
  std::vector<gid_t> groups(32);
  while (true) {
    socklen_t size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) == 0) {
      groups.resize(size / sizeof(gid_t));
      return groups;
    }
    if (errno != ERANGE) return ErrnoStatus(errno, "asking for the groups of", "a unix socket's peer");
    groups.resize(size / sizeof(gid_t));
  }
}

bool Contains(const std::vector<gid_t>& groups, gid_t group) {
  return std::find(groups.begin(), groups.end(), group) != groups.end();
}

}  // namespace

absl::StatusOr<ucred> PeerCredentials(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return ErrnoStatus(errno, "asking for the credentials of", "a unix socket's peer");
  }
  return peer;
}

absl::Status CheckPeer(int socket, const std::vector<gid_t>& allowed_groups) {
  TC_ASSIGN_OR_RETURN(const ucred peer, PeerCredentials(socket));
  if (peer.uid == geteuid() || peer.uid == 0 || Contains(allowed_groups, peer.gid)) return absl::OkStatus();
  if (!allowed_groups.empty()) {
    TC_ASSIGN_OR_RETURN(const std::vector<gid_t> groups, PeerGroups(socket));
    const bool allowed = std::any_of(groups.begin(), groups.end(),
                                     [&](gid_t group) { return Contains(allowed_groups, group); });
    if (allowed) return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat("user ", peer.uid, " may not use the sockets of user ",
                                                  geteuid(),
                                                  "; run as that user, or allow one of its groups"));
}

}  // namespace tensorcast
