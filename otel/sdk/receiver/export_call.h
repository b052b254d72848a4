// One OTLP export call at a gRPC server, for any of the three services. The method's name identifies the
// service. The services' generated code is not linked, because the SDK's own OTLP messages are in the same
// process.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>
#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tensorcast::otel {

// Owns itself: deletes itself when gRPC no longer uses it. Its functions run on gRPC's threads.
class ExportCall : public grpc::ServerGenericBidiReactor {
 public:
  // Starts to read the request. gRPC begins the read only after ExportServer::CallFactory returned.
  explicit ExportCall(const grpc::GenericCallbackServerContext& context) : method_(context.method()) {
    StartRead(&request_);
  }

 protected:
  // Called when the request has arrived. The override must lead to exactly one call of Accept or Finish, now
  // or later.
  virtual void OnRequest() = 0;

  const std::string& method() const { return method_; }
  std::string request() const;
  // Answers with an empty message, which means success in all three services.
  void Accept();

 private:
  void OnReadDone(bool ok) final;
  void OnDone() final { delete this; }

  const std::string method_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
};

// A server, without TLS, that answers every call with a new ExportCall. Its destructor ends running calls and
// waits for them.
class ExportServer {
 public:
  // Makes the object of one call. Runs on gRPC's threads. Objects that a call refers to must outlive the
  // server.
  using CallFactory = std::function<ExportCall*(const grpc::GenericCallbackServerContext&)>;

  // `listen`: host:port; port 0 picks a free port. UNAVAILABLE when the server cannot listen.
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
