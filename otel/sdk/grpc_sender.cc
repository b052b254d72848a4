#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/byte_buffer.h>

#include <string_view>

#include "otel/sdk/sender.h"

namespace tensorcast::otel::sdk {
namespace {

// gRPC wants "host:port" of "https://host:port/ignored".
std::string TargetOf(std::string_view endpoint) {
  if (const size_t scheme = endpoint.find("://"); scheme != endpoint.npos) endpoint.remove_prefix(scheme + 3);
  return std::string(endpoint.substr(0, endpoint.find('/')));
}

// As OTLP's specification lists them, for an answer without RetryInfo.
bool IsRetryable(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::OUT_OF_RANGE:
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DATA_LOSS:
      return true;
    default:
      return false;
  }
}

std::shared_ptr<grpc::Channel> MakeChannel(const GrpcSenderOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetUserAgentPrefix(options.user_agent);
  return grpc::CreateCustomChannel(TargetOf(options.endpoint),
                                   options.tls ? grpc::SslCredentials({.pem_root_certs = options.ca_pem})
                                               : grpc::InsecureChannelCredentials(),
                                   arguments);
}

// There is one blocking call at a time: the thread of the export queue has nothing else to do. The message is
// encoded already, so the call is a generic one, of bytes.
class GrpcSender final : public Sender {
 public:
  GrpcSender(const GrpcSenderOptions& options, const std::string& method)
      : options_(options), method_(method), stub_(MakeChannel(options)) {}

  SendResult Send(const std::string& message) override {
    grpc::ClientContext context;
    // A time of 0 means that the call has no deadline.
    if (options_.timeout.count() > 0) {
      context.set_deadline(std::chrono::system_clock::now() + options_.timeout);
    }
    for (const auto& [key, value] : options_.headers) context.AddMetadata(key, value);
    if (options_.gzip) context.set_compression_algorithm(GRPC_COMPRESS_GZIP);

    const grpc::Slice slice(message);
    const grpc::ByteBuffer request(&slice, 1);
    // A queue for this call alone, so that the next event on it is its end.
    grpc::CompletionQueue queue;
    const auto call = stub_.PrepareUnaryCall(&context, method_, request, &queue);
    call->StartCall();
    grpc::ByteBuffer response;
    grpc::Status status;
    call->Finish(&response, &status, this);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    // What `Next` reports plays no part: a unary call always ends with a status.
    if (status.ok()) return {};
    return {.error = status.error_message().empty() ? "an error without a message" : status.error_message(),
            .retryable = IsRetryable(status.error_code())};
  }

 private:
  const GrpcSenderOptions options_;
  const std::string method_;
  grpc::GenericStub stub_;
};

}  // namespace

std::unique_ptr<Sender> NewGrpcSender(const GrpcSenderOptions& options, const std::string& method) {
  return std::make_unique<GrpcSender>(options, method);
}

}  // namespace tensorcast::otel::sdk
