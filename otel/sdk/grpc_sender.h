// One kind of unary call to a gRPC server, of messages that are bytes already. Names neither gRPC,
// OpenTelemetry nor Abseil: it stands between sources that see one Abseil and sources that see the other.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tensorcast::otel::sdk {

struct GrpcSenderOptions {
  std::string endpoint;  // http://host:port, https://host:port or host:port
  bool tls = false;
  std::string ca_pem;  // empty: the machine's own
  std::string user_agent;
  std::vector<std::pair<std::string, std::string>> headers;
  bool gzip = false;
  std::chrono::nanoseconds timeout{0};  // of a call; 0: none
};

struct GrpcSendResult {
  std::string error;      // what went wrong, or nothing
  bool retryable = true;  // whether OTLP lets a client send the same again
};

// Thread-safe.
class GrpcSender {
 public:
  // `method`: "/package.Service/Method". Connects when it first sends.
  static std::unique_ptr<GrpcSender> Create(const GrpcSenderOptions& options, const std::string& method);
  virtual ~GrpcSender() = default;

  // Blocks for the answer, whose content is ignored.
  virtual GrpcSendResult Send(const std::string& message) = 0;
};

}  // namespace tensorcast::otel::sdk
