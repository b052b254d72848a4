#include "otel/sdk/receiver/export_call.h"

#include <grpcpp/server_builder.h>

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tensorcast::otel {

// gRPC delivers the request in slices. Dump takes references to them; the copy below is the only one.
std::string ExportCall::request() const {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!request_.Dump(&slices).ok()) return bytes;
  bytes.reserve(request_.Length());
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

void ExportCall::Accept() {
  // The answer of all three services to a success: a message without fields.
  const grpc::Slice empty("");
  response_ = grpc::ByteBuffer(&empty, 1);
  StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
}

void ExportCall::OnReadDone(bool ok) {
  if (!ok) {
    return Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                               "export telemetry: the call has no request; send one"));
  }
  OnRequest();
}

class ExportServer::Service final : public grpc::CallbackGenericService {
 public:
  explicit Service(CallFactory make_call) : make_call_(std::move(make_call)) {}
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    return make_call_(*context);
  }

 private:
  const CallFactory make_call_;
};

ExportServer::ExportServer(CallFactory make_call)
    : service_(std::make_unique<Service>(std::move(make_call))) {}

absl::StatusOr<std::unique_ptr<ExportServer>> ExportServer::Start(const std::string& listen,
                                                                  CallFactory make_call) {
  std::unique_ptr<ExportServer> started(new ExportServer(std::move(make_call)));
  grpc::ServerBuilder builder;
  // Calls come as bytes, whatever their method: one generic service takes the three of OTLP.
  int port = 0;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(started->service_.get());
  started->server_ = builder.BuildAndStart();
  if (started->server_ == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("listen for OTLP on ", listen,
                     ": gRPC cannot listen there and gives no reason; choose another address"));
  }
  started->endpoint_ = absl::StrCat("http://", listen.substr(0, listen.rfind(':')), ":", port);
  return started;
}

ExportServer::~ExportServer() {
  // Calls that are under way end at once.
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
}

}  // namespace tensorcast::otel
