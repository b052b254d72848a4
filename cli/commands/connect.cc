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

struct Named {
  std::string address;
  std::string_view by;  // the flag, key or variable
};

// --daemon, else client.daemon, else where every client of this host looks. The choice is made here and not
// by the library, so that an error names what the user wrote.
absl::StatusOr<Named> DaemonOf(const CommonFlags& flags, const v1::Config& config) {
  if (!flags.daemon.empty()) return Named{client::ToDaemonAddress(flags.daemon), "--daemon"};
  if (!config.client().daemon().empty()) return Named{config.client().daemon(), "client.daemon"};
  TC_ASSIGN_OR_RETURN(std::string found, client::FindDaemon(""));
  return Named{std::move(found), client::kDaemonVariable};
}

}  // namespace

absl::StatusOr<client::ClientOptions> ConfiguredClient(const CommonFlags& flags) {
  TC_ASSIGN_OR_RETURN(const v1::Config config, LoadConfig(flags));
  TC_ASSIGN_OR_RETURN(const absl::Duration timeout, ParseDuration(config.client().connect_timeout()));
  TC_ASSIGN_OR_RETURN(const Named daemon, DaemonOf(flags, config));
  TC_RETURN_IF_ERROR(Annotate(CheckServerAddress(daemon.address), daemon.by));
  const v1::SecurityConfig& security = config.security();
  return client::ClientOptions{.daemon = daemon.address,
                               .certificates = {.ca = security.ca(),
                                                .certificate = security.certificate(),
                                                .key = security.key(),
                                                .trust_domain = security.trust_domain()},
                               .connect_timeout = timeout,
                               // An interrupt ends the connecting, too.
                               .cancellation = OnTerminationSignal()};
}

absl::StatusOr<std::unique_ptr<client::Client>> ConnectClient(const CommonFlags& flags) {
  TC_ASSIGN_OR_RETURN(const client::ClientOptions options, ConfiguredClient(flags));
  return client::Client::Connect(options);
}

absl::StatusOr<std::unique_ptr<client::AdminClient>> ConnectAdmin(const CommonFlags& flags) {
  TC_ASSIGN_OR_RETURN(const client::ClientOptions options, ConfiguredClient(flags));
  return client::AdminClient::Connect(options);
}

}  // namespace tensorcast::cli
