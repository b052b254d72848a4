#include "otel/sdk/exporters.h"

#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "opentelemetry/exporters/otlp/otlp_grpc_exporter_options.h"
#include "opentelemetry/exporters/otlp/otlp_grpc_log_record_exporter_options.h"
#include "opentelemetry/exporters/otlp/otlp_grpc_metric_exporter_factory.h"
#include "opentelemetry/exporters/otlp/otlp_grpc_metric_exporter_options.h"
#include "opentelemetry/exporters/otlp/otlp_http_exporter_options.h"
#include "opentelemetry/exporters/otlp/otlp_http_log_record_exporter_options.h"
#include "opentelemetry/exporters/otlp/otlp_http_metric_exporter_factory.h"
#include "opentelemetry/exporters/otlp/otlp_http_metric_exporter_options.h"
#include "opentelemetry/sdk/common/global_log_handler.h"
#include "otel/sdk/guards.h"
#include "otel/sdk/otlp_bytes.h"
#include "otel/sdk/otlp_encoders.h"
#include "otel/sdk/sender.h"
#include "otel/sdk/values.h"

namespace tensorcast::otel::sdk {
namespace {

namespace otlp = opentelemetry::exporter::otlp;
using otel_common::ExportResult;

constexpr char kTraceMethod[] = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
constexpr char kLogMethod[] = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";

// Field numbers of opentelemetry-proto 1.x. The requests of both signals, and what is in them, have the same
// shape.
namespace request_field {
enum : uint32_t { kOfResources = 1 };
}
namespace of_resource_field {
enum : uint32_t { kResource = 1, kOfScopes };
}
namespace resource_field {
enum : uint32_t { kAttributes = 1 };
}
namespace of_scope_field {
enum : uint32_t { kScope = 1, kItems, kSchemaUrl };
}
namespace scope_field {
enum : uint32_t { kName = 1, kVersion };
}

// The fields of an opentelemetry.proto.resource.v1.Resource.
std::string EncodeResource(const opentelemetry::sdk::resource::Resource& resource) {
  std::string bytes;
  for (const auto& [key, value] : resource.GetAttributes()) {
    protobuf::AppendKeyValue(bytes, resource_field::kAttributes, key,
                             opentelemetry::nostd::visit(protobuf::ToAnyValue(), value));
  }
  return bytes;
}

// Sends what `Encoder`s encoded: all items come from MakeRecordable.
template <class Exporter, class Recordable, class Encoder>
class EncodedExporter final : public Exporter {
 public:
  // `what` names the items and the protocol in errors.
  EncodedExporter(std::unique_ptr<Sender> sender, const char* what, const BridgeOptions& options)
      : sender_(std::move(sender)), what_(what), resource_(EncodeResource(MakeResource(options))) {
    protobuf::AppendBytes(scope_, scope_field::kName, kScopeName);
    protobuf::AppendBytes(scope_, scope_field::kVersion, kScopeVersion);
  }

  std::unique_ptr<Recordable> MakeRecordable() noexcept override { return std::make_unique<Encoder>(); }
  ExportResult Export(
      const opentelemetry::nostd::span<std::unique_ptr<Recordable>>& items) noexcept override {
    if (items.empty()) return ExportResult::kSuccess;
    const SendResult sent = sender_->Send(EncodeRequest(items));
    if (sent.error.empty()) return ExportResult::kSuccess;
    // The guard around this exporter reads these on the same thread: whether another try makes sense, and
    // when.
    export_trouble.final = !sent.retryable;
    export_trouble.retry_after = sent.retry_after;
    OTEL_INTERNAL_LOG_ERROR("[OTLP " << what_ << "] " << sent.error);
    return ExportResult::kFailure;
  }
  // Nothing waits here: the queue is the processor's, and Export blocks.
  bool ForceFlush(Timeout) noexcept override { return true; }
  bool Shutdown(Timeout) noexcept override { return true; }

 private:
  // An Export...ServiceRequest. All items of a process have one resource and one scope.
  std::string EncodeRequest(const opentelemetry::nostd::span<std::unique_ptr<Recordable>>& items) const {
    const auto encoded = [](const auto& item) { return static_cast<const Encoder&>(*item).bytes(); };
    const std::string_view schema_url = kSchemaUrl;
    // The sizes are computed from the inside out, since each part's size is written before it. Then the
    // request is written in one go, into memory that is reserved once.
    size_t of_scope = protobuf::FieldSize(scope_.size()) + protobuf::FieldSize(schema_url.size());
    for (const auto& item : items) of_scope += protobuf::FieldSize(encoded(item).size());
    const size_t of_resource = protobuf::FieldSize(resource_.size()) + protobuf::FieldSize(of_scope);

    std::string request;
    request.reserve(protobuf::FieldSize(of_resource));
    protobuf::AppendHead(request, request_field::kOfResources, of_resource);
    protobuf::AppendBytes(request, of_resource_field::kResource, resource_);
    protobuf::AppendHead(request, of_resource_field::kOfScopes, of_scope);
    protobuf::AppendBytes(request, of_scope_field::kScope, scope_);
    for (const auto& item : items) protobuf::AppendBytes(request, of_scope_field::kItems, encoded(item));
    protobuf::AppendBytes(request, of_scope_field::kSchemaUrl, schema_url);
    return request;
  }

  const std::unique_ptr<Sender> sender_;
  const char* const what_;
  const std::string resource_;
  std::string scope_;
};

using Spans = EncodedExporter<otel_trace::SpanExporter, otel_trace::Recordable, SpanEncoder>;
using Logs = EncodedExporter<otel_logs::LogRecordExporter, otel_logs::Recordable, LogEncoder>;

void AddHeaders(const BridgeOptions& options, otlp::OtlpHeaders& headers) {
  for (const auto& [key, value] : options.headers) {
    headers.erase(key);  // above those of OTEL_EXPORTER_OTLP_HEADERS
    headers.emplace(key, value);
  }
}

// The SDK's options start from OTEL_*; what is configured stands above it.
template <class Options>
Options GrpcOptions(const BridgeOptions& options) {
  Options grpc;
  if (!options.endpoint.empty()) {
    grpc.endpoint = options.endpoint;
    grpc.use_ssl_credentials = options.endpoint.starts_with("https://");
  }
  if (!options.ca_file.empty()) grpc.ssl_credentials_cacert_path = options.ca_file;
  if (options.timeout.count() > 0) grpc.timeout = options.timeout;
  if (!options.compression.empty()) grpc.compression = options.compression;
  AddHeaders(options, grpc.metadata);
  return grpc;
}

template <class Options>
Options HttpOptions(const BridgeOptions& options, const std::string& path) {
  Options http;
  if (!options.endpoint.empty()) {
    http.url = options.endpoint;
    // What is configured is the collector's address, below which OTLP has a path for each signal.
    while (http.url.ends_with('/')) http.url.pop_back();
    http.url += path;
  }
  http.content_type = otlp::HttpRequestContentType::kBinary;
  if (!options.ca_file.empty()) http.ssl_ca_cert_path = options.ca_file;
  if (!options.cert_file.empty()) http.ssl_client_cert_path = options.cert_file;
  if (!options.key_file.empty()) http.ssl_client_key_path = options.key_file;
  if (options.insecure_skip_verify) http.ssl_insecure_skip_verify = true;
  if (options.timeout.count() > 0) http.timeout = options.timeout;
  if (!options.compression.empty()) http.compression = options.compression;
  AddHeaders(options, http.http_headers);
  return http;
}

GrpcSenderOptions ToGrpc(const otlp::OtlpGrpcClientOptions& options) {
  GrpcSenderOptions sender{.endpoint = options.endpoint,
                           .tls = options.use_ssl_credentials,
                           .ca_pem = options.ssl_credentials_cacert_as_string,
                           .user_agent = options.user_agent,
                           .gzip = options.compression == "gzip",
                           .timeout = options.timeout};
  if (!options.ssl_credentials_cacert_path.empty()) {
    // gRPC takes the certificate itself, not its path.
    // A file that cannot be read leaves the text empty, which stands for the machine's authorities. A
    // configured path was checked before (options.cc); a path from OTEL_* is not.
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

}  // namespace

Exporters MakeGrpcExporters(const BridgeOptions& options) {
  const auto sender = [](const otlp::OtlpGrpcClientOptions& grpc, const char* method) {
    return NewGrpcSender(ToGrpc(grpc), method);
  };
  return {.spans = std::make_unique<Spans>(
              sender(GrpcOptions<otlp::OtlpGrpcExporterOptions>(options), kTraceMethod), "spans over gRPC",
              options),
          .metrics = otlp::OtlpGrpcMetricExporterFactory::Create(
              GrpcOptions<otlp::OtlpGrpcMetricExporterOptions>(options)),
          .logs = std::make_unique<Logs>(
              sender(GrpcOptions<otlp::OtlpGrpcLogRecordExporterOptions>(options), kLogMethod),
              "log records over gRPC", options)};
}

Exporters MakeHttpExporters(const BridgeOptions& options) {
  return {.spans = std::make_unique<Spans>(
              NewHttpSender(ToHttp(HttpOptions<otlp::OtlpHttpExporterOptions>(options, "/v1/traces"))),
              "spans over HTTP", options),
          .metrics = otlp::OtlpHttpMetricExporterFactory::Create(
              HttpOptions<otlp::OtlpHttpMetricExporterOptions>(options, "/v1/metrics")),
          .logs = std::make_unique<Logs>(
              NewHttpSender(ToHttp(HttpOptions<otlp::OtlpHttpLogRecordExporterOptions>(options, "/v1/logs"))),
              "log records over HTTP", options)};
}

}  // namespace tensorcast::otel::sdk
