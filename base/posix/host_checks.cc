#include "base/posix/host_checks.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/posix/state_files.h"
#include "base/posix/unique_fd.h"

namespace tensorcast {

bool IsOwnAddress(const HostPort& address) {
  if (IsWildcard(address)) return true;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  // Port 0, since a daemon that runs now may use the configured port.
  if (getaddrinfo(address.host.c_str(), "0", &hints, &found) != 0) return false;
  const UniqueFd probe(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // The kernel decides: bind fails for an address that no interface has. The socket never listens.
  const bool own = probe && bind(probe.get(), found->ai_addr, found->ai_addrlen) == 0;
  freeaddrinfo(found);
  return own;
}

void CheckListen(std::string_view key, const std::string& listen, Findings& findings) {
  const absl::StatusOr<HostPort> address = ParseHostPort(listen);
  if (!address.ok()) return findings.Add(key, address.status());
  if (!IsOwnAddress(*address)) {
    findings.Add(key, absl::StrCat("\"", listen, "\": ", address->host,
                                   " is not an address of this host; give an address of this host"));
  }
}

void CheckSocketPlace(std::string_view key, const std::string& path, Findings& findings) {
  struct stat info;
  const int looked = lstat(path.c_str(), &info);
  if (looked == 0 && !S_ISSOCK(info.st_mode)) {
    findings.Add(
        key, absl::StrCat("\"", path, "\": a file that is not a socket has this path; choose another path"));
  }
  if (looked != 0 && errno == ENOTDIR) {
    findings.Add(
        key, absl::StrCat("\"", path, "\": the parent of this path is not a folder; choose another path"));
  }
}

void CheckPrivatePlace(std::string_view key, const std::string& path, std::string_view own_entry,
                       Findings& findings) {
  std::filesystem::path existing = path;
  struct stat info;
  // A start makes the default folder where it is missing, with all above it, by its rules for the user.
  if (path == DefaultStateFolder() && stat(path.c_str(), &info) != 0 && errno == ENOENT) return;
  // Up to the nearest folder that exists: a start makes those below it.
  while (!existing.empty() && stat(existing.c_str(), &info) != 0) {
    if (errno == EACCES) {
      return findings.Add(
          key, absl::StrCat("\"", path, "\": user ", geteuid(), " has no access to ", existing.string(),
                            "; run this command as the server's user, or choose another path"));
    }
    existing = existing.parent_path();
  }
  if (existing.empty()) existing = ".";
  std::error_code ignored;
  if (!std::filesystem::is_directory(existing, ignored)) {
    return findings.Add(
        key, absl::StrCat("\"", path, "\": ", existing.string(), " is not a folder; choose another path"));
  }
  if (existing == path) {
    if (const absl::Status usable = CheckPrivateFolder(path, own_entry); !usable.ok()) {
      return findings.Add(key, absl::StrCat("\"", path, "\": ", usable.message()));
    }
  }
  if (access(existing.c_str(), W_OK | X_OK) != 0) {
    findings.Add(key,
                 absl::StrCat("\"", path, "\": user ", geteuid(), " may not write to ", existing.string(),
                              "; choose another folder, make that user its owner, or run this command as the "
                              "server's user"));
  }
}

}  // namespace tensorcast
