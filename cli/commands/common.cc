#include "cli/commands/common.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "base/status.h"
#include "base/units.h"
#include "cli/cluster/local_cluster.h"
#include "cli/config/config.h"
#include "client/admin.h"
#include "otel/api/span.h"
#include "proto/config.pb.h"
#include "rpc/address.h"
#include "tensorcast/client.h"

namespace tensorcast::cli {
namespace {

constexpr int kInterrupted = 130;

sigset_t TerminationSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

// client.daemon and client.connect_timeout, as the flags and the configuration have them.
struct Endpoint {
  std::string address;
  absl::Duration connect_timeout;
};

absl::StatusOr<Endpoint> DaemonEndpoint(const CommonFlags& flags) {
  TC_ASSIGN_OR_RETURN(const v1::Config config, LoadConfig(flags));
  TC_ASSIGN_OR_RETURN(const absl::Duration timeout, ParseDuration(config.client().connect_timeout()));
  if (flags.daemon.empty()) return Endpoint{config.client().daemon(), timeout};
  TC_RETURN_IF_ERROR(Annotate(rpc::CheckServerAddress(flags.daemon), "--daemon"));
  return Endpoint{flags.daemon, timeout};
}

absl::StatusOr<v1::Config> ReadConfig(const CommonFlags& flags) {
  std::vector<std::string> sets = flags.sets;
  if (flags.tracing || !flags.otlp_endpoint.empty()) sets.push_back("observability.otel.enabled=true");
  if (!flags.otlp_endpoint.empty()) sets.push_back("observability.otel.endpoint=" + flags.otlp_endpoint);
  if (!flags.trace_file.empty()) sets.push_back("observability.trace_file=" + flags.trace_file);
  return config::Load({.path = flags.config, .sets = sets});
}

}  // namespace

absl::StatusOr<std::unique_ptr<client::Client>> ConnectClient(const CommonFlags& flags,
                                                              DeviceRuntime* devices) {
  TC_ASSIGN_OR_RETURN(const Endpoint daemon, DaemonEndpoint(flags));
  return client::Client::Connect({.daemon = daemon.address,
                                  .connect_timeout = daemon.connect_timeout,
                                  .cancellation = OnTerminationSignal(),
                                  .devices = devices});
}

absl::StatusOr<std::unique_ptr<client::AdminClient>> ConnectAdmin(const CommonFlags& flags) {
  TC_ASSIGN_OR_RETURN(const Endpoint daemon, DaemonEndpoint(flags));
  return client::AdminClient::Connect(daemon.address, daemon.connect_timeout, OnTerminationSignal());
}

absl::StatusOr<v1::Config> LoadConfig(const CommonFlags& flags) {
  if (flags.loaded == nullptr) {
    flags.loaded = std::make_shared<const absl::StatusOr<v1::Config>>(ReadConfig(flags));
  }
  return *flags.loaded;
}

Cancellation OnTerminationSignal() {
  static const Cancellation cancellation = [] {
    Cancellation cancel;
    std::thread([cancel] {
      const sigset_t signals = TerminationSignals();
      int number = 0;
      sigwait(&signals, &number);
      cancel.Cancel();
      sigwait(&signals, &number);
      TemporaryDirectory::RemoveAll();
      _exit(kInterrupted);
    }).detach();
    return cancel;
  }();
  return cancellation;
}

void HandleSignals() {
  const sigset_t signals = TerminationSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  (void)OnTerminationSignal();  // its thread takes them, also from commands that never ask
}

RequestContext InterruptibleContext(absl::Duration timeout) {
  RequestContext context = RequestContext::Background(timeout);
  context.cancellation = OnTerminationSignal();
  if (const TraceContext& command = otel::CurrentContext(); command.IsValid()) context.trace = command;
  return context;
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "tensorcast: %s: %s\n", absl::StatusCodeToString(status.code()).c_str(),
               std::string(status.message()).c_str());
  return OnTerminationSignal().IsCancelled() ? kInterrupted : 1;
}

int ExitCode(const absl::Status& status) { return status.ok() ? 0 : Fail(status); }

int EndlessExitCode(const absl::Status& status) {
  return OnTerminationSignal().IsCancelled() ? kInterrupted : ExitCode(status);
}

}  // namespace tensorcast::cli
