#include "cli/commands/connect.h"

#include <string>
#include <string_view>
#include <utility>

#include "base/address.h"
#include "base/status.h"
#include "base/units.h"
#include "cli/commands/termination.h"
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

// --daemon, else client.daemon, else where every client of this host looks.
absl::StatusOr<Named> DaemonOf(const CommonFlags& flags, const v1::Config& config) {
  if (!flags.daemon.empty()) return Named{client::ToDaemonAddress(flags.daemon), "--daemon"};
  if (!config.client().daemon().empty()) return Named{config.client().daemon(), "client.daemon"};
  TC_ASSIGN_OR_RETURN(std::string found, client::FindDaemon(""));
  return Named{std::move(found), client::kDaemonVariable};
}

absl::StatusOr<Endpoint> DaemonEndpoint(const CommonFlags& flags) {
  TC_ASSIGN_OR_RETURN(const v1::Config config, LoadConfig(flags));
  TC_ASSIGN_OR_RETURN(const absl::Duration timeout, ParseDuration(config.client().connect_timeout()));
  TC_ASSIGN_OR_RETURN(const Named daemon, DaemonOf(flags, config));
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
