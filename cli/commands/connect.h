// Connects to the daemon that a command talks to.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "cli/commands/common_flags.h"
#include "client/admin.h"
#include "tensorcast/client.h"

namespace tensorcast::cli {

inline constexpr const char* kConfirmedHelp =
    "Fail if the global store does not answer, instead of using the last revision that this daemon knows";

inline constexpr const char* kPinHelp =
    "Keep the replica on this daemon's node, also while it is not in use, until an operator unpins it";

// Options for connecting to the daemon that --daemon names. Without --daemon, they are for the daemon of the
// key client.daemon, else for the daemon that client::FindDaemon finds. A termination signal ends the attempt
// to connect. INVALID_ARGUMENT names the wrong flag, key or variable.
absl::StatusOr<client::ClientOptions> ConfiguredClient(const CommonFlags& flags);
// Connect with the options of ConfiguredClient. PERMISSION_DENIED at once if this user may not use the
// daemon's socket.
absl::StatusOr<std::unique_ptr<client::Client>> ConnectClient(const CommonFlags& flags);
absl::StatusOr<std::unique_ptr<client::AdminClient>> ConnectAdmin(const CommonFlags& flags);

}  // namespace tensorcast::cli
