#include "cli/commands/connect.h"

#include <unistd.h>

#include <string>
#include <string_view>

#include "base/address.h"
#include "base/status.h"
#include "base/units.h"
#include "cli/commands/termination.h"
#include "cli/config/config.h"
#include "client/daemon_address.h"
#include "proto/config.pb.h"

namespace tensorcast::cli {
namespace {

// As the flags, the configuration and the environment have them.
struct Endpoint {
  std::string address;
  absl::Duration connect_timeout;
  client::ClientCertificates certificates;
};

client::ClientCertificates CertificatesOf(const v1::SecurityConfig& config) {
  return {.ca = config.ca(),
          .certificate = config.certificate(),
          .key = config.key(),
          .trust_domain = config.trust_domain()};
}

struct Named {
  std::string address;
  std::string_view by;  // the flag, key or variable
};

// --daemon, else what is configured, else TENSORCAST_DAEMON, else the first default socket that is there.
Named DaemonOf(const CommonFlags& flags, const v1::Config& config) {
  if (!flags.daemon.empty()) return {client::ToDaemonAddress(flags.daemon), "--daemon"};
  const std::string& configured = config.client().daemon();
  const bool is_default = configured == config::Defaults().client().daemon();
  if (!is_default) return {configured, "client.daemon"};
  if (auto daemon = client::DaemonOfEnvironment(); daemon.has_value()) {
    return {*daemon, client::kDaemonVariable};
  }
  if (access(SocketPath(configured).c_str(), F_OK) != 0) {
    if (absl::StatusOr<std::string> other = client::DefaultDaemon(); other.ok()) {
      return {*other, "client.daemon"};
    }
  }
  return {configured, "client.daemon"};
}

absl::StatusOr<Endpoint> DaemonEndpoint(const CommonFlags& flags) {
  TC_ASSIGN_OR_RETURN(const v1::Config config, LoadConfig(flags));
  TC_ASSIGN_OR_RETURN(const absl::Duration timeout, ParseDuration(config.client().connect_timeout()));
  const Named daemon = DaemonOf(flags, config);
  TC_RETURN_IF_ERROR(Annotate(CheckServerAddress(daemon.address), daemon.by));
  return Endpoint{.address = daemon.address,
                  .connect_timeout = timeout,
                  .certificates = CertificatesOf(config.security())};
}

}  // namespace

absl::StatusOr<client::ClientCertificates> ConfiguredCertificates(const CommonFlags& flags) {
  TC_ASSIGN_OR_RETURN(const v1::Config config, LoadConfig(flags));
  return CertificatesOf(config.security());
}

absl::StatusOr<std::unique_ptr<client::Client>> ConnectClient(const CommonFlags& flags,
                                                              DeviceRuntime* devices) {
  TC_ASSIGN_OR_RETURN(const Endpoint daemon, DaemonEndpoint(flags));
  return client::Client::Connect({.daemon = daemon.address,
                                  .certificates = daemon.certificates,
                                  .connect_timeout = daemon.connect_timeout,
                                  .cancellation = OnTerminationSignal(),
                                  .devices = devices});
}

absl::StatusOr<std::unique_ptr<client::AdminClient>> ConnectAdmin(const CommonFlags& flags) {
  TC_ASSIGN_OR_RETURN(const Endpoint daemon, DaemonEndpoint(flags));
  return client::AdminClient::Connect(daemon.address, daemon.connect_timeout, OnTerminationSignal(),
                                      daemon.certificates);
}

}  // namespace tensorcast::cli
