#include "rpc/refusing_server.h"

#include <fcntl.h>
#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/posix/process_limits.h"
#include "base/steady_time.h"
#include "rpc/call_contexts.h"
#include "rpc/credentials.h"
#include "rpc/status_mapping.h"

namespace tensorcast::rpc {
namespace {

// Each refused connection has two descriptors, gRPC's and ours, and gRPC may not have closed the descriptor
// of the previous one yet. Together they take no more than half of the reserve.
size_t MaxAtOnce() { return std::clamp(DescriptorReserve() / 8, 1, 64); }

// For a client to make its call; then it is told to go, which loses no call that was sent meanwhile.
constexpr int kAgeMs = 500;
constexpr int kGraceMs = 300;
// Then every client that is still connected is cut off.
constexpr absl::Duration kTime = absl::Milliseconds(1000);
// What each has at least before it makes room for another.
constexpr absl::Duration kMinTime = absl::Milliseconds(100);

// Neither health nor reflection: every call is refused.
class NothingElse : public grpc::HealthCheckServiceServerBuilderOption {
 public:
  NothingElse() : HealthCheckServiceServerBuilderOption(nullptr) {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->clear();
  }
};

class Refusal : public grpc::ServerGenericBidiReactor {
 public:
  explicit Refusal(const absl::Status& reason) { Finish(ToGrpcStatus(reason)); }
  void OnDone() override { delete this; }
};

}  // namespace

class RefusingServer::Service : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    // On a gRPC thread, while the acceptor's thread may set the next reason.
    absl::MutexLock lock(&mutex_);
    return new Refusal(reason_);
  }
  // A call does not tell its connection's reason, but with one reason there is seldom another.
  void set_reason(const absl::Status& reason) {
    absl::MutexLock lock(&mutex_);
    reason_ = reason;
  }

 private:
  absl::Mutex mutex_;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);
};

RefusingServer::RefusingServer() : service_(std::make_unique<Service>()) {}

absl::StatusOr<std::unique_ptr<RefusingServer>> RefusingServer::Start(const Credentials* credentials) {
  std::unique_ptr<RefusingServer> refusing(new RefusingServer);
  grpc::ServerBuilder builder;
  builder.SetOption(std::make_unique<NothingElse>());
  // gRPC itself ends its connections at that age: clients are told to go, call or no call.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kAgeMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kGraceMs);
  builder.RegisterCallbackGenericService(refusing->service_.get());
  using Handover = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  refusing->connections_ = builder.experimental().AddExternalConnectionAcceptor(
      Handover::FROM_FD, grpc::InsecureServerCredentials());
  if (credentials != nullptr) {
    refusing->tls_connections_ =
        builder.experimental().AddExternalConnectionAcceptor(Handover::FROM_FD, credentials->ForServer());
  }
  refusing->server_ = builder.BuildAndStart();
  if (refusing->server_ == nullptr) {
    return absl::InternalError(
        "start the gRPC server that refuses connections: gRPC gives no reason; look at gRPC's lines in the "
        "log");
  }
  return refusing;
}

RefusingServer::~RefusingServer() {
  if (server_ != nullptr) server_->Shutdown(ToGrpcDeadline(SteadyNow()));
}

// The life of a refused connection: gRPC serves it, each call on it ends with the reason, after kAgeMs gRPC
// tells the client to go, and after kTime the acceptor's thread cuts it off (EndOverdue).
void RefusingServer::Refuse(int listener, UniqueFd connection, bool tls, const absl::Status& reason) {
  while (refused_.size() >= MaxAtOnce()) EndOldest();
  // gRPC owns the descriptor that it is given, and does not tell when it is done. Ours is to the same socket,
  // by which it can be cut off.
  UniqueFd ours(fcntl(connection.get(), F_DUPFD_CLOEXEC, 0));
  if (!ours) return;  // no descriptor is left even for this
  refused_.push_back({std::move(ours), SteadyNow() + kTime});
  service_->set_reason(reason);
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters handed;
  handed.listener_fd = listener;
  handed.fd = connection.release();
  (tls ? tls_connections_ : connections_)->HandleNewConnection(&handed);
}

SteadyTime RefusingServer::RoomAt() const {
  if (refused_.size() < MaxAtOnce()) return SteadyTime::InfinitePast();
  return refused_.front().end - kTime + kMinTime;
}

SteadyTime RefusingServer::EndOverdue() {
  while (!refused_.empty() && refused_.front().end <= SteadyNow()) EndOldest();
  return refused_.empty() ? SteadyTime::InfiniteFuture() : refused_.front().end;
}

void RefusingServer::EndOldest() {
  shutdown(refused_.front().socket.get(), SHUT_RDWR);  // gRPC sees it, and closes its descriptor
  refused_.pop_front();
}

}  // namespace tensorcast::rpc
