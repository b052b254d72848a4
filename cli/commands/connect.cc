#include "cli/commands/connect.h"

#include "base/address.h"
#include "base/status.h"
#include "base/units.h"
#include "cli/commands/termination.h"
#include "proto/config.pb.h"

namespace tensorcast::cli {
namespace {

// client.daemon and client.connect_timeout, as the flags and the configuration have them.
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

absl::StatusOr<Endpoint> DaemonEndpoint(const CommonFlags& flags) {
  TC_ASSIGN_OR_RETURN(const v1::Config config, LoadConfig(flags));
  TC_ASSIGN_OR_RETURN(const absl::Duration timeout, ParseDuration(config.client().connect_timeout()));
  const std::string& address = flags.daemon.empty() ? config.client().daemon() : flags.daemon;
  TC_RETURN_IF_ERROR(
      Annotate(CheckServerAddress(address), flags.daemon.empty() ? "client.daemon" : "--daemon"));
  return Endpoint{
      .address = address, .connect_timeout = timeout, .certificates = CertificatesOf(config.security())};
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
