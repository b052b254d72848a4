#include "rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/status/status.h"
#include "otel/api/steady_time.h"
#include "rpc/credentials.h"
#include "rpc/grpc_deadline.h"
#include "rpc/interceptors.h"

namespace tensorcast::rpc {
namespace {

// Both are switches of the whole process in gRPC, to be set before the first server is built.
void EnableStandardServices() {
  static absl::once_flag once;
  absl::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

bool SomebodyListens(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool connected = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return connected;
}

// gRPC silently takes over a path that another server listens on, so that one is asked first.
absl::Status CheckUnixPath(std::string_view address) {
  if (!absl::ConsumePrefix(&address, "unix:")) return absl::OkStatus();
  const std::string path(address);
  if (path.empty() || path.size() >= sizeof(sockaddr_un::sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen on unix:", path, ": a socket's path has 1 to ",
                     sizeof(sockaddr_un::sun_path) - 1, " bytes; choose a shorter one"));
  }
  if (SomebodyListens(path)) {
    return absl::AlreadyExistsError(absl::StrCat("cannot listen on unix:", path,
                                                 ": a running process does; stop it or choose another path"));
  }
  return absl::OkStatus();
}

std::string BoundAddress(const std::string& asked, int port) {
  if (absl::StartsWith(asked, "unix:")) return asked;
  return absl::StrCat(asked.substr(0, asked.rfind(':')), ":", port);
}

void SetLimits(grpc::ServerBuilder& builder, const ServerOptions& options) {
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  builder.SetMaxSendMessageSize(options.max_message_bytes);
  // Without this a second server may bind the same port and take half of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Clients ping every 20 s (ChannelOptions); a server that finds that too often closes the connection.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  EnableStandardServices();
  grpc::ServerBuilder builder;
  SetLimits(builder, options);
  std::vector<int> ports(options.listen.size(), 0);
  for (size_t i = 0; i < options.listen.size(); ++i) {
    TC_RETURN_IF_ERROR(CheckUnixPath(options.listen[i]));
    builder.AddListeningPort(options.listen[i], MakeServerCredentials(), &ports[i]);
  }
  for (grpc::Service* service : options.services) builder.RegisterService(service);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(MakeServerInterceptorFactory());
  builder.experimental().SetInterceptorCreators(std::move(interceptors));

  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  std::vector<std::string> addresses;
  for (size_t i = 0; i < ports.size(); ++i) {
    if (server == nullptr || ports[i] == 0) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", options.listen[i],
                                                 ": the address is not one of this host, the port is in use, "
                                                 "or there is no permission; see the log above"));
    }
    addresses.push_back(BoundAddress(options.listen[i], ports[i]));
  }
  if (server == nullptr) return absl::InternalError("gRPC could not start a server that listens nowhere");
  return std::unique_ptr<Server>(new Server(std::move(server), std::move(addresses)));
}

Server::Server(std::unique_ptr<grpc::Server> server, std::vector<std::string> addresses)
    : server_(std::move(server)), addresses_(std::move(addresses)) {}

Server::~Server() { Shutdown(SteadyNow()); }

void Server::Shutdown(absl::Time deadline) { server_->Shutdown(ToGrpcDeadline(deadline)); }

void Server::Wait() { server_->Wait(); }

}  // namespace tensorcast::rpc
