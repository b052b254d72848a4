// Sends encoded messages of one kind to a collector, over gRPC or HTTP. This header uses neither gRPC,
// OpenTelemetry nor Abseil, because it is between sources that see the distribution's Abseil and sources that
// see TensorCast's (bridge.h).
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tensorcast::otel::sdk {

struct SendResult {
  std::string error;                         // the error; empty: success
  bool retryable = true;                     // whether OTLP lets a client send the message again
  std::chrono::milliseconds retry_after{0};  // min time before a retry, as the collector asks
};

// Thread-safe.
class Sender {
 public:
  virtual ~Sender() = default;
  // Sends a message and blocks until the answer. Ignores the answer's content. Connects at the first message.
  virtual SendResult Send(const std::string& message) = 0;
};

struct GrpcSenderOptions {
  std::string endpoint;  // http://host:port, https://host:port or host:port
  bool tls = false;
  std::string ca_pem;  // empty: the machine's authorities
  std::string user_agent;
  std::vector<std::pair<std::string, std::string>> headers;
  bool gzip = false;
  std::chrono::nanoseconds timeout{0};  // of a call; 0: no timeout
};
// `method`: "/package.Service/Method".
std::unique_ptr<Sender> NewGrpcSender(const GrpcSenderOptions& options, const std::string& method);

struct HttpSenderOptions {
  std::string url;  // with its path
  std::vector<std::pair<std::string, std::string>> headers;
  std::string ca_file;  // these four are for https://
  std::string cert_file;
  std::string key_file;
  bool insecure_skip_verify = false;
  std::chrono::milliseconds timeout{0};  // of a post; REQUIRES: more than 0
};
// Posts protobuf messages.
std::unique_ptr<Sender> NewHttpSender(const HttpSenderOptions& options);

}  // namespace tensorcast::otel::sdk
