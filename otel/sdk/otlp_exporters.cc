#include "otel/sdk/otlp_exporters.h"

#include <atomic>
#include <fstream>
#include <iterator>
#include <string>

#include "opentelemetry/sdk/common/global_log_handler.h"
#include "otel/sdk/guards.h"
#include "otel/sdk/log_encoder.h"
#include "otel/sdk/protobuf_writer.h"
#include "otel/sdk/sender.h"
#include "otel/sdk/span_encoder.h"

namespace tensorcast::otel::sdk {
namespace {

namespace otlp = opentelemetry::exporter::otlp;
namespace trace = opentelemetry::sdk::trace;
using opentelemetry::sdk::common::ExportResult;
using Spans = opentelemetry::nostd::span<std::unique_ptr<trace::Recordable>>;

using Logs = opentelemetry::nostd::span<std::unique_ptr<opentelemetry::sdk::logs::Recordable>>;

constexpr char kTraceMethod[] = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
constexpr char kLogMethod[] = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";

// The requests of both, and what is in them, have the same shape.
namespace request_field {
enum : uint32_t { kOfResources = 1 };
}
namespace resource_field {
enum : uint32_t { kResource = 1, kOfScopes };
}
namespace scope_field {
enum : uint32_t { kScope = 1, kItems };
}

GrpcSenderOptions ToGrpc(const otlp::OtlpGrpcClientOptions& options) {
  GrpcSenderOptions sender{.endpoint = options.endpoint,
                           .tls = options.use_ssl_credentials,
                           .ca_pem = options.ssl_credentials_cacert_as_string,
                           .user_agent = options.user_agent,
                           .gzip = options.compression == "gzip",
                           .timeout = options.timeout};
  if (!options.ssl_credentials_cacert_path.empty()) {
    std::ifstream file(options.ssl_credentials_cacert_path);
    sender.ca_pem.assign(std::istreambuf_iterator<char>(file), {});
  }
  sender.headers.assign(options.metadata.begin(), options.metadata.end());
  return sender;
}

// The SDK has the same options under two names.
template <class Options>
HttpSenderOptions ToHttp(const Options& options) {
  return {.url = options.url,
          .headers = {options.http_headers.begin(), options.http_headers.end()},
          .ca_file = options.ssl_ca_cert_path,
          .cert_file = options.ssl_client_cert_path,
          .key_file = options.ssl_client_key_path,
          .insecure_skip_verify = options.ssl_insecure_skip_verify,
          .timeout = std::chrono::duration_cast<std::chrono::milliseconds>(options.timeout)};
}

// An Export...ServiceRequest of items that are all `Encoder`s: all come from MakeRecordable below. All of a
// process have one resource and one scope: those of the first.
template <class Encoder, class Items>
std::string EncodeRequest(const Items& items) {
  const auto encoded = [](const auto& item) -> const Encoder& { return static_cast<const Encoder&>(*item); };
  const Encoder& first = encoded(items[0]);
  const std::string resource = first.resource() == nullptr ? "" : EncodeResource(*first.resource());
  const std::string scope = first.scope() == nullptr ? "" : EncodeScope(*first.scope());
  size_t of_scope = protobuf::FieldSize(scope.size());
  for (const auto& item : items) of_scope += protobuf::FieldSize(encoded(item).bytes().size());
  const size_t of_resource = protobuf::FieldSize(resource.size()) + protobuf::FieldSize(of_scope);

  std::string request;
  request.reserve(protobuf::FieldSize(of_resource));
  protobuf::AppendHead(request, request_field::kOfResources, of_resource);
  protobuf::AppendBytes(request, resource_field::kResource, resource);
  protobuf::AppendHead(request, resource_field::kOfScopes, of_scope);
  protobuf::AppendBytes(request, scope_field::kScope, scope);
  for (const auto& item : items) protobuf::AppendBytes(request, scope_field::kItems, encoded(item).bytes());
  return request;
}

// What the two have in common.
class Channel {
 public:
  Channel(std::unique_ptr<Sender> sender, const char* what) : sender_(std::move(sender)), what_(what) {}

  ExportResult Send(const std::string& request) noexcept {
    if (shut_down_) return ExportResult::kFailure;
    const SendResult sent = sender_->Send(request);
    if (sent.error.empty()) return ExportResult::kSuccess;
    export_trouble.final = !sent.retryable;
    export_trouble.retry_after = sent.retry_after;
    OTEL_INTERNAL_LOG_ERROR("[OTLP " << what_ << "] " << sent.error);
    return ExportResult::kFailure;
  }
  bool Shutdown() noexcept {
    shut_down_ = true;
    return true;
  }

 private:
  const std::unique_ptr<Sender> sender_;
  const char* const what_;
  std::atomic<bool> shut_down_ = false;
};

class EncodedSpanExporter final : public trace::SpanExporter {
 public:
  EncodedSpanExporter(std::unique_ptr<Sender> sender, const char* what) : channel_(std::move(sender), what) {}

  std::unique_ptr<trace::Recordable> MakeRecordable() noexcept override {
    return std::make_unique<SpanEncoder>();
  }
  ExportResult Export(const Spans& spans) noexcept override {
    return spans.empty() ? ExportResult::kSuccess : channel_.Send(EncodeRequest<SpanEncoder>(spans));
  }
  bool ForceFlush(std::chrono::microseconds) noexcept override { return true; }
  bool Shutdown(std::chrono::microseconds) noexcept override { return channel_.Shutdown(); }

 private:
  Channel channel_;
};

class EncodedLogExporter final : public otel_logs::LogRecordExporter {
 public:
  EncodedLogExporter(std::unique_ptr<Sender> sender, const char* what) : channel_(std::move(sender), what) {}

  std::unique_ptr<otel_logs::Recordable> MakeRecordable() noexcept override {
    return std::make_unique<LogEncoder>();
  }
  ExportResult Export(const Logs& records) noexcept override {
    return records.empty() ? ExportResult::kSuccess : channel_.Send(EncodeRequest<LogEncoder>(records));
  }
  bool ForceFlush(std::chrono::microseconds) noexcept override { return true; }
  bool Shutdown(std::chrono::microseconds) noexcept override { return channel_.Shutdown(); }

 private:
  Channel channel_;
};

}  // namespace

std::unique_ptr<trace::SpanExporter> NewSpanExporter(const otlp::OtlpGrpcExporterOptions& options) {
  return std::make_unique<EncodedSpanExporter>(NewGrpcSender(ToGrpc(options), kTraceMethod),
                                               "spans over gRPC");
}

std::unique_ptr<trace::SpanExporter> NewSpanExporter(const otlp::OtlpHttpExporterOptions& options) {
  return std::make_unique<EncodedSpanExporter>(NewHttpSender(ToHttp(options)), "spans over HTTP");
}

std::unique_ptr<otel_logs::LogRecordExporter> NewLogExporter(
    const otlp::OtlpGrpcLogRecordExporterOptions& options) {
  return std::make_unique<EncodedLogExporter>(NewGrpcSender(ToGrpc(options), kLogMethod),
                                              "log records over gRPC");
}

std::unique_ptr<otel_logs::LogRecordExporter> NewLogExporter(
    const otlp::OtlpHttpLogRecordExporterOptions& options) {
  return std::make_unique<EncodedLogExporter>(NewHttpSender(ToHttp(options)), "log records over HTTP");
}

}  // namespace tensorcast::otel::sdk
