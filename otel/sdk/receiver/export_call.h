// One OTLP export call as a gRPC server sees it, of whichever of the three services: the services are not
// compiled in, since the SDK's own OTLP messages live in the same process; a call is known by its method's
// name.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>
#include <grpcpp/support/byte_buffer.h>

#include <functional>
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

// A server, without TLS, that answers every call by a new ExportCall. Destroying it ends the calls that are
// under way, and waits for them.
class ExportServer {
 public:
  // On a thread of gRPC's; what it makes refers to must outlive the server.
  using CallFactory = std::function<ExportCall*(const grpc::GenericCallbackServerContext&)>;

  // `listen`: host:port; port 0 picks one. UNAVAILABLE when it cannot listen.
  static absl::StatusOr<std::unique_ptr<ExportServer>> Start(const std::string& listen,
                                                             CallFactory make_call);
  ~ExportServer();

  const std::string& endpoint() const { return endpoint_; }  // http://host:port

 private:
  class Service;

  explicit ExportServer(CallFactory make_call);

  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::string endpoint_;
};

}  // namespace tensorcast::otel
