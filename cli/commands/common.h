// What every command shares: the common flags, the connection to the daemon, errors, and Ctrl-C.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"

namespace tensorcast::client {
class AdminClient;
class Client;
}  // namespace tensorcast::client

namespace tensorcast::v1 {
class Config;
}

namespace tensorcast {
class DeviceRuntime;
}

namespace tensorcast::cli {

struct CommonFlags {
  std::string config;             // YAML file; empty: defaults
  std::vector<std::string> sets;  // a.b.c=value
  std::string daemon;             // overrides client.daemon
  bool json = false;
  bool tracing = false;       // observability.otel.enabled
  std::string otlp_endpoint;  // the same, and observability.otel.endpoint
  std::string trace_file;     // observability.trace_file

  // What LoadConfig read; null before. Private to it.
  mutable std::shared_ptr<const absl::StatusOr<v1::Config>> loaded;
};

// Reads it the first time, since a pipe has nothing the second time.
absl::StatusOr<v1::Config> LoadConfig(const CommonFlags& flags);

// Connects to the daemon that the flags name. `devices` may be null.
absl::StatusOr<std::unique_ptr<client::Client>> ConnectClient(const CommonFlags& flags,
                                                              DeviceRuntime* devices = nullptr);
absl::StatusOr<std::unique_ptr<client::AdminClient>> ConnectAdmin(const CommonFlags& flags);

// Before any thread starts: from now on the first SIGINT or SIGTERM cancels OnTerminationSignal(), and a
// second one ends the process at once, without its temporary folders.
void HandleSignals();
Cancellation OnTerminationSignal();
RequestContext InterruptibleContext(absl::Duration timeout = absl::InfiniteDuration());

// Prints the error on stderr; the exit code for it: 1, or 130 when the user interrupted.
int Fail(const absl::Status& status);
int ExitCode(const absl::Status& status);  // 0 when OK, else Fail
// Of a command that goes on until it is interrupted: 130 then, without an error.
int EndlessExitCode(const absl::Status& status);

}  // namespace tensorcast::cli
