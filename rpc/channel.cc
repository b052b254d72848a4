#include "rpc/channel.h"

#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/address.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "rpc/call_contexts.h"
#include "rpc/credentials.h"
#include "rpc/foreign_mutexes/foreign_mutexes.h"
#include "rpc/health.h"
#include "rpc/interceptors.h"

namespace tensorcast::rpc {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(5);

// The interval of pings where several servers stand in for each other: one that does not answer must be
// noticed before its callers give up.
constexpr absl::Duration kSeveralPing = absl::Seconds(1);
// Between attempts to reach one of several, or a server of this host: they cost nothing, and callers wait.
constexpr absl::Duration kShortBackoff = absl::Milliseconds(200);
// How soon a wait for a connection sees that it is cancelled.
constexpr absl::Duration kCancellationLook = absl::Milliseconds(50);

std::string FormatNumeric(const SocketAddress& address) {
  char host[NI_MAXHOST] = {};
  getnameinfo(address.get(), address.length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return FormatHostPort({.host = host, .port = PortOf(address.storage)});
}

bool IsSeveral(std::string_view address) { return absl::StrContains(address, ','); }

// As gRPC takes it: several are "ipv4:10.0.0.1:7000,10.0.0.2:7000".
std::string TargetOf(const std::string& address) {
  if (!IsSeveral(address)) return address;
  const std::string found = LookUpNames(address);
  if (found.empty()) return address.substr(0, address.find(','));  // which gRPC looks up itself
  return absl::StrCat(absl::StartsWith(found, "[") ? "ipv6:" : "ipv4:", found);
}

grpc::ChannelArguments ArgumentsOf(const ChannelOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(options.max_message_bytes);
  arguments.SetMaxSendMessageSize(options.max_message_bytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(options.keepalive_interval)));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(options.keepalive_timeout)));
  // A watch may be silent for hours: keep pinging without data.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // In spite of its name this is how long an attempt to connect may take, the handshake included. A peer on a
  // busy host needs more than a moment for that, and a client that gives up too early has to begin again.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(kConnectTimeout)));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(options.max_reconnect_backoff)));
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return arguments;
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsFor(const std::string& address, const Credentials* own,
                                                         security::RoleSet servers,
                                                         const std::string& server_name = "") {
  return own == nullptr || IsUnixAddress(address) ? grpc::InsecureChannelCredentials()
                                                  : own->ForChannelTo(servers, server_name);
}

}  // namespace

std::string LookUpNames(const std::string& address) {
  if (!IsSeveral(address)) return address;
  std::vector<std::string> found;
  std::string unknown;
  std::optional<sa_family_t> family;
  for (const std::string_view one : absl::StrSplit(address, ',')) {
    const absl::StatusOr<HostPort> name = ParseHostPort(one);
    if (!name.ok()) continue;
    const absl::StatusOr<std::vector<SocketAddress>> resolved = ResolveAddresses(*name);
    if (!resolved.ok()) {
      absl::StrAppend(&unknown, unknown.empty() ? "" : "; ", resolved.status().message());
      continue;
    }
    for (const SocketAddress& socket : *resolved) {
      const sa_family_t its = socket.storage.ss_family;
      if (!family.has_value()) family = its;
      if (its == *family) found.push_back(FormatNumeric(socket));
    }
  }
  // A caller that waits for one of them asks every few seconds.
  if (!unknown.empty()) LOG_EVERY_N_SEC(WARNING, 30) << "look up " << address << ": " << unknown;
  return absl::StrJoin(found, ",");
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const ChannelOptions& options) {
  StopCheckingForeignMutexes();
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(MakeClientInterceptorFactory(options.session_id, IsSeveral(address) ? "" : address));
  ChannelOptions own = options;
  if (IsSeveral(address) || options.stands_by) {
    own.keepalive_interval = own.keepalive_timeout = kSeveralPing;
    own.max_reconnect_backoff = kShortBackoff;
  }
  if (IsUnixAddress(address)) own.max_reconnect_backoff = kShortBackoff;
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      TargetOf(address),
      CredentialsFor(address, options.credentials.get(), options.servers, options.server_name),
      ArgumentsOf(own), std::move(interceptors));
}

absl::Status AwaitConnection(grpc::Channel& channel, const RequestContext& context, std::string_view what) {
  // An attempt that failed for another channel of this process counts for this one, too: one more is made.
  const SteadyTime failing_until = SteadyNow() + kShortBackoff;
  while (true) {
    const grpc_connectivity_state state = channel.GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return absl::OkStatus();
    TC_RETURN_IF_ERROR(context.Check(what));
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE && SteadyNow() >= failing_until) {
      return absl::UnavailableError(
          absl::StrCat(what,
                       ": the server refused or ended the connection; check the address of the server and "
                       "the certificates of client and server"));
    }
    channel.WaitForStateChange(state,
                               ToGrpcDeadline(std::min(context.deadline, SteadyNow() + kCancellationLook)));
  }
}

absl::Status CheckHealth(const std::string& address, absl::Duration timeout,
                         std::shared_ptr<const Credentials> credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return CheckHealthOn(
      grpc::CreateCustomChannel(address, CredentialsFor(address, credentials.get(), security::kEveryRole),
                                arguments),
      SteadyNow() + timeout);
}

}  // namespace tensorcast::rpc
