#include "client/daemon_address.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/posix/socket_folders.h"
#include "base/request_context.h"
#include "client/listener.h"

namespace tensorcast::client {
namespace {

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

// The operator's socket for the daemon's own user, else the client's.
std::string SocketForThisUser(const std::string& folder) {
  std::string operators = absl::StrCat(folder, "/", kOperatorSocket);
  struct stat found{};
  const bool own = stat(operators.c_str(), &found) == 0 && found.st_uid == geteuid();
  return own ? operators : absl::StrCat(folder, "/", kClientSocket);
}

}  // namespace

std::string ToDaemonAddress(std::string_view named) {
  std::filesystem::path path;
  if (std::string_view in_home = named; absl::ConsumePrefix(&in_home, "~/")) {
    path = std::filesystem::path(Environment("HOME")) / in_home;
  } else if (absl::StartsWith(named, "/") || absl::StartsWith(named, "./") ||
             absl::StartsWith(named, "../")) {
    path = named;
  } else {
    return std::string(named);
  }
  // Absolute, since the working directory may be another one when the address is used again.
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return absl::StrCat("unix:", (error ? path : absolute).lexically_normal().string());
}

// The first of the folders in which a daemon listens. A socket that refuses this user is the error only
// where no other one listens.
absl::StatusOr<std::string> FindDaemonIn(std::span<const std::string> folders) {
  std::vector<std::string> tried;
  absl::Status refused;
  for (const std::string& folder : folders) {
    std::string socket = SocketForThisUser(folder);
    std::string address = absl::StrCat("unix:", socket);
    const absl::Status listens = CheckListener(address, RequestContext::Background());
    if (listens.ok()) return address;
    if (absl::IsPermissionDenied(listens)) refused.Update(listens);
    tried.push_back(std::move(socket));
  }
  if (!refused.ok()) return refused;
  return absl::UnavailableError(
      absl::StrCat("find the daemon of this host: none listens at ", absl::StrJoin(tried, " or "),
                   "; start one with \"tensorcast daemon\", or name one that runs with ", kDaemonVariable));
}

absl::StatusOr<std::string> FindDaemon(std::string_view named) {
  if (!named.empty()) return ToDaemonAddress(named);
  if (const std::string of_environment = Environment(kDaemonVariable); !of_environment.empty()) {
    return ToDaemonAddress(of_environment);
  }
  return FindDaemonIn(SocketFolders());
}

}  // namespace tensorcast::client
