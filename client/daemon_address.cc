#include "client/daemon_address.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/posix/state_files.h"

namespace tensorcast::client {
namespace {

constexpr char kSystemFolder[] = "/var/lib/tensorcast";

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::vector<std::string> DefaultSockets() {
  std::vector<std::string> sockets;
  if (const std::string own = DefaultStateFolder(); own != kSystemFolder) {
    sockets.push_back(own + "/daemon.sock");
  }
  // Of the packaged service, and of a daemon that root started without configuration.
  for (const char* folder : {"/run/tensorcast", kSystemFolder}) {
    sockets.push_back(absl::StrCat(folder, "/client.sock"));
    sockets.push_back(absl::StrCat(folder, "/daemon.sock"));
  }
  return sockets;
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
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return absl::StrCat("unix:", (error ? path : absolute).lexically_normal().string());
}

std::optional<std::string> DaemonOfEnvironment() {
  const std::string named = Environment(kDaemonVariable);
  if (named.empty()) return std::nullopt;
  return ToDaemonAddress(named);
}

absl::StatusOr<std::string> DefaultDaemon() {
  const std::vector<std::string> sockets = DefaultSockets();
  for (const std::string& socket : sockets) {
    if (access(socket.c_str(), W_OK) == 0) return "unix:" + socket;
  }
  return absl::UnavailableError(
      absl::StrCat("no daemon at ", absl::StrJoin(sockets, " or "),
                   " that this user may use: start one with \"tensorcast daemon\", or name one that runs (",
                   kDaemonVariable, ")"));
}

absl::StatusOr<std::string> FindDaemon(std::string_view named) {
  if (!named.empty()) return ToDaemonAddress(named);
  if (std::optional<std::string> daemon = DaemonOfEnvironment(); daemon.has_value()) return *daemon;
  return DefaultDaemon();
}

}  // namespace tensorcast::client
