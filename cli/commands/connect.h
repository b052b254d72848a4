// Connects to the daemon that a command talks to.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "cli/commands/common_flags.h"
#include "client/admin.h"
#include "tensorcast/client.h"

namespace tensorcast::cli {

inline constexpr const char* kConfirmedHelp =
    "Fail when the global store does not answer, instead of taking the key as this daemon last knew it";

inline constexpr const char* kPinHelp =
    "Keep the replica on this daemon's node, also while it is not in use, until an operator unpins it";

// How to connect to the daemon that --daemon names, else client.daemon of the configuration, else the daemon
// that client::FindDaemon finds. A termination signal ends the attempt. INVALID_ARGUMENT names the flag, the
// key or the variable.
absl::StatusOr<client::ClientOptions> ConfiguredClient(const CommonFlags& flags);
// Both return PERMISSION_DENIED, at once, when the daemon's socket is for other users.
absl::StatusOr<std::unique_ptr<client::Client>> ConnectClient(const CommonFlags& flags);
absl::StatusOr<std::unique_ptr<client::AdminClient>> ConnectAdmin(const CommonFlags& flags);

}  // namespace tensorcast::cli
