#include <cstdio>

#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "tensorcast/client.h"

namespace tensorcast::cli {
namespace {

struct PinFlags {
  std::string replica;
};

void AddFlags(Flags& flags, PinFlags& values) {
  flags.Add(
      "replica", values.replica,
      "A key or an artifact id, for all its replicas at this daemon; or a replica id from ls --replicas",
      {.required = true});
}

absl::Status SetPinned(const CommonFlags& common, const std::string& replica, bool pinned) {
  TC_ASSIGN_OR_RETURN(const auto client, ConnectClient(common));
  TC_RETURN_IF_ERROR(client->SetPinned(InterruptibleContext(), replica, pinned));
  if (common.json) {
    std::printf("{\"replica_id\": \"%s\", \"pinned\": %s}\n", replica.c_str(), pinned ? "true" : "false");
  } else {
    std::printf("%s %s\n", pinned ? "pinned" : "unpinned", replica.c_str());
  }
  return absl::OkStatus();
}

int RunPin(const CommonFlags& common, const PinFlags& flags) {
  return ExitCode(SetPinned(common, flags.replica, true));
}

int RunUnpin(const CommonFlags& common, const PinFlags& flags) {
  return ExitCode(SetPinned(common, flags.replica, false));
}

}  // namespace

Command PinCommand() {
  return {.name = "pin",
          .help = "Keep a replica of this daemon from being evicted",
          .spanned = true,
          .bind = Bind(AddFlags, RunPin)};
}

Command UnpinCommand() {
  return {.name = "unpin", .help = "Allow eviction again", .spanned = true, .bind = Bind(AddFlags, RunUnpin)};
}

}  // namespace tensorcast::cli
