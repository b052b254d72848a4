#include "rpc/endpoint_access.h"

#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/address.h"
#include "rpc/credentials.h"

namespace tensorcast::rpc {
namespace {

using NameBuffer = std::array<char, 4096>;

// The reentrant calls, since other threads may look up names at the same time.
std::string GroupText(gid_t id) {
  group entry{};
  group* found = nullptr;
  NameBuffer names;
  getgrgid_r(id, &entry, names.data(), names.size(), &found);
  return found == nullptr ? absl::StrCat("gid ", id) : std::string(found->gr_name);
}

}  // namespace

std::string UserText(uid_t user) {
  passwd entry{};
  passwd* found = nullptr;
  NameBuffer names;
  getpwuid_r(user, &entry, names.data(), names.size(), &found);
  return found == nullptr ? absl::StrCat("uid ", user) : absl::StrCat(found->pw_name, " (uid ", user, ")");
}

std::string EndpointAccess::ToString() const { return absl::StrCat(endpoint, ": ", callers, ": ", role); }

EndpointAccess AccessOf(const std::string& address, const std::vector<gid_t>& unix_groups,
                        security::RoleSet unix_roles, const Credentials* credentials) {
  constexpr char kEverything[] = "operator, every call";
  EndpointAccess access{.endpoint = address};
  if (IsUnixAddress(address)) {
    access.callers = CallersOfSocket(SocketPath(address), unix_groups);
    access.role = security::Contains(unix_roles, security::Role::kOperator) ? kEverything : "client";
    return access;
  }
  // Without certificates nothing tells the callers of a port apart: each may call everything.
  access.callers = CallersOfPort(address, "a certificate", credentials);
  access.role = credentials == nullptr ? kEverything : "the role in the certificate";
  access.in_clear = credentials == nullptr;
  return access;
}

std::string CallersOfSocket(const std::string& path, const std::vector<gid_t>& groups) {
  std::string text = absl::StrCat("user ", UserText(geteuid()));
  // Root may open every socket, whatever its mode.
  if (geteuid() != 0) absl::StrAppend(&text, ", root");
  if (!groups.empty()) {
    const auto name = [](std::string* out, gid_t group) { out->append(GroupText(group)); };
    absl::StrAppend(&text, ", group", groups.size() == 1 ? " " : "s ", absl::StrJoin(groups, " ", name));
  }
  struct stat info{};
  // The mode that the file has, which may not be the one that was asked for.
  if (stat(path.c_str(), &info) == 0) absl::StrAppendFormat(&text, ", mode %04o", info.st_mode & 07777);
  return text;
}

std::string CallersOfPort(const std::string& address, std::string_view certified_as,
                          const Credentials* credentials) {
  if (credentials != nullptr) {
    return absl::StrCat("holders of ", certified_as, " of ", credentials->identity().self().name.trust_domain,
                        ", by mutual TLS");
  }
  const absl::StatusOr<HostPort> port = ParseHostPort(address);
  return port.ok() && IsLoopback(*port) ? "every user of this host, in clear"
                                        : "every process that reaches this port, in clear";
}

}  // namespace tensorcast::rpc
