#include "rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <sys/socket.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/time/clock.h"
#include "base/address.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"
#include "rpc/access.h"
#include "rpc/call_contexts.h"
#include "rpc/connection_acceptor.h"
#include "rpc/credentials.h"
#include "rpc/foreign_mutexes/foreign_mutexes.h"
#include "rpc/interceptors.h"
#include "security/identity.h"

namespace tensorcast::rpc {
namespace {

// What a client may send of one stream before the server has taken it.
constexpr int kStreamWindowBytes = 1 << 20;

// Both are switches of the whole process in gRPC, to be set before the first server is built.
void EnableStandardServices() {
  static absl::once_flag once;
  absl::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

void SetLimits(grpc::ServerBuilder& builder, const ServerOptions& options) {
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  builder.SetMaxSendMessageSize(options.max_message_bytes);
  // Clients ping every 20 s (ChannelOptions), and one of several servers every second (channel.cc); a server
  // that finds that too often closes the connection.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // gRPC measures each connection's bandwidth by pings, with a timer that always runs; and each timer makes
  // every other one dearer (the distribution's gRPC checks that a timer is not pending in chains of all that
  // are). With 10,000 connections that was a quarter of a store's time. A window that is large enough takes
  // its place.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
  // Nothing reads gRPC's own records of channels, which cost each connection.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 0);
  // A peer that connects and sends nothing is disconnected.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 20000);
}

using Connections = grpc::experimental::ExternalConnectionAcceptor;

void HandOver(Connections& to, int listener, UniqueFd connection) {
  Connections::NewConnectionParameters handed;
  handed.listener_fd = listener;
  handed.fd = connection.release();
  to.HandleNewConnection(&handed);
}

bool IsUnixSocket(int socket) {
  int domain = 0;
  socklen_t length = sizeof(domain);
  return getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_UNIX;
}

}  // namespace

// The addresses are bound first, so that a port in use fails before anything else is made. Peers that connect
// from then on wait in the kernel until the gRPC server is complete and the acceptor starts.
absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  StopCheckingForeignMutexes();
  EnableStandardServices();
  std::unique_ptr<Server> server(new Server);
  TC_ASSIGN_OR_RETURN(server->acceptor_,
                      ConnectionAcceptor::Listen({.listen = options.listen,
                                                  .unix_groups = options.unix_groups,
                                                  .max_connections = options.max_connections,
                                                  .credentials = options.credentials}));
  // Without certificates, and with a unix socket that gives every role, there is nothing to check.
  if (options.credentials != nullptr || options.unix_roles != security::kEveryRole ||
      options.admit != nullptr) {
    const auto unix_path = std::ranges::find_if(options.listen, IsUnixAddress);
    server->access_ = std::make_unique<AccessControl>(
        AccessControl::Options{.credentials = options.credentials,
                               .unix_roles = options.unix_roles,
                               .unix_socket = unix_path == options.listen.end() ? "" : SocketPath(*unix_path),
                               .operator_socket = options.operator_socket,
                               .admit = options.admit});
  }
  grpc::ServerBuilder builder;
  SetLimits(builder, options);
  using Handover = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  server->connections_ = builder.experimental().AddExternalConnectionAcceptor(
      Handover::FROM_FD, grpc::InsecureServerCredentials());
  if (options.credentials != nullptr) {
    server->tls_connections_ = builder.experimental().AddExternalConnectionAcceptor(
        Handover::FROM_FD, options.credentials->ForServer());
    server->certificate_gauge_.emplace(
        otel::metrics::kCertificateRemainingSeconds.Observe([own = options.credentials](auto& observer) {
          observer.Observe(absl::ToDoubleSeconds(own->identity().self().not_after - absl::Now()));
        }));
  }
  for (grpc::Service* service : options.services) builder.RegisterService(service);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  std::function<void(std::string_view)> on_admitted;
  if (!std::ranges::all_of(options.listen, IsUnixAddress)) {
    // The acceptor outlives the calls: the destructor waits for them in Shutdown before the members go.
    on_admitted = [acceptor = server->acceptor_.get()](std::string_view peer) { acceptor->Admitted(peer); };
  }
  interceptors.push_back(
      MakeServerInterceptorFactory(server->access_.get(), options.epoch, std::move(on_admitted)));
  builder.experimental().SetInterceptorCreators(std::move(interceptors));

  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) {
    return absl::InternalError("start a gRPC server: gRPC gives no reason; look at gRPC's lines in the log");
  }
  // Last: a connection that is handed over before the server is built would be lost. Those that came since
  // Listen wait in the kernel's queue.
  TC_RETURN_IF_ERROR(
      server->acceptor_->Start([plain = server->connections_.get(), tls = server->tls_connections_.get()](
                                   int listener, UniqueFd connection) {
        // Unix sockets are in clear in any case: the kernel names the peer.
        HandOver(tls == nullptr || IsUnixSocket(listener) ? *plain : *tls, listener, std::move(connection));
      }));
  return server;
}

Server::Server() = default;

Server::~Server() { Shutdown(SteadyNow()); }

const std::vector<std::string>& Server::addresses() const { return acceptor_->addresses(); }

double Server::UnreadShare() const { return acceptor_->UnreadShare(); }

// No new connections first, then the calls: gRPC lets them end to the deadline and cancels the rest.
void Server::Shutdown(SteadyTime deadline) {
  if (acceptor_ != nullptr) acceptor_->Stop();
  if (server_ != nullptr) server_->Shutdown(ToGrpcDeadline(deadline));
}

void Server::Wait() { server_->Wait(); }

}  // namespace tensorcast::rpc
