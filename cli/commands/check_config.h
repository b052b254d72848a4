// Whether servers can be started with a configuration: what each value looks like was checked when it was
// read (cli/config); here is what depends on several values, or on this host. Both servers call it before
// anything else, and `config check` calls nothing else, so that what one refuses the other does too. Not here
// are the limits of the process: a shell's are others than those of the unit that starts a server.
#pragma once

#include "absl/status/status.h"
#include "proto/config.pb.h"

namespace tensorcast::cli {

// What is started; a file that several hosts share has sections that are another's.
enum class Roles { kAll, kGlobalStore, kDaemon };

// INVALID_ARGUMENT with a line for each thing that is wrong: its key, its value, and what to do. Looks at
// this host (addresses, groups, folders, memory), changes nothing, and asks no other process, but for the
// addresses of host names. Thread-safe.
absl::Status CheckConfig(const v1::Config& config, Roles roles);

}  // namespace tensorcast::cli
