#include "otel/sdk/receiver/export_call.h"

#include <grpcpp/server_builder.h>

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tensorcast::otel {

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
  const grpc::Slice empty("");
  response_ = grpc::ByteBuffer(&empty, 1);
  StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
}

void ExportCall::OnReadDone(bool ok) {
  if (!ok) return Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no request"));
  OnRequest();
}

absl::StatusOr<ExportServer> ExportServer::Start(const std::string& listen,
                                                 grpc::CallbackGenericService& service) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat("a receiver of OTLP cannot listen on ", listen));
  }
  return ExportServer(std::move(server),
                      absl::StrCat("http://", listen.substr(0, listen.rfind(':')), ":", port));
}

ExportServer::ExportServer(std::unique_ptr<grpc::Server> server, std::string endpoint)
    : server_(std::move(server)), endpoint_(std::move(endpoint)) {}

ExportServer::~ExportServer() {
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
}

}  // namespace tensorcast::otel
