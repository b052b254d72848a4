// One OTLP export call as a gRPC server sees it, of whichever of the three services: the services are not
// compiled in, since the SDK's own OTLP messages live in the same process; a call is known by its method's
// name.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>
#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tensorcast::otel {

// Owns itself: it is deleted when gRPC is done with it. Its functions run on gRPC's threads.
class ExportCall : public grpc::ServerGenericBidiReactor {
 public:
  // Reads the request: that begins when gRPC is given the call, so after the derived object is complete.
  explicit ExportCall(const grpc::GenericCallbackServerContext& context) : method_(context.method()) {
    StartRead(&request_);
  }

 protected:
  // The request is here: ends in exactly one of Accept and Finish, now or later.
  virtual void OnRequest() = 0;

  const std::string& method() const { return method_; }
  std::string request() const;
  // Answers with an empty message, which is what the services answer with.
  void Accept();

 private:
  void OnReadDone(bool ok) final;
  void OnDone() final { delete this; }

  const std::string method_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
};

// A server, without TLS, whose calls are all `service`'s. Destroying it ends the calls that are under way.
class ExportServer {
 public:
  // `listen`: host:port; port 0 picks one. `service` outlives the server. UNAVAILABLE when it cannot listen.
  static absl::StatusOr<ExportServer> Start(const std::string& listen, grpc::CallbackGenericService& service);
  ~ExportServer();
  ExportServer(ExportServer&&) = default;
  ExportServer& operator=(ExportServer&&) = delete;

  const std::string& endpoint() const { return endpoint_; }  // http://host:port

 private:
  ExportServer(std::unique_ptr<grpc::Server> server, std::string endpoint);

  std::unique_ptr<grpc::Server> server_;
  std::string endpoint_;
};

}  // namespace tensorcast::otel
