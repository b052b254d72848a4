#include "otel/sdk/grpc_span_exporter.h"

#include <atomic>
#include <fstream>
#include <iterator>
#include <string>

#include "opentelemetry/sdk/common/global_log_handler.h"
#include "otel/sdk/grpc_sender.h"
#include "otel/sdk/otlp_wire.h"
#include "otel/sdk/span_encoder.h"

namespace tensorcast::otel::sdk {
namespace {

namespace otlp = opentelemetry::exporter::otlp;
namespace trace = opentelemetry::sdk::trace;
using opentelemetry::sdk::common::ExportResult;
using Spans = opentelemetry::nostd::span<std::unique_ptr<trace::Recordable>>;

constexpr char kMethod[] = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

namespace request_field {
enum : uint32_t { kResourceSpans = 1 };
}
namespace resource_spans_field {
enum : uint32_t { kResource = 1, kScopeSpans };
}
namespace scope_spans_field {
enum : uint32_t { kScope = 1, kSpans };
}

GrpcSenderOptions SenderOptions(const otlp::OtlpGrpcExporterOptions& options) {
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

const SpanEncoder& Encoded(const std::unique_ptr<trace::Recordable>& span) {
  return static_cast<const SpanEncoder&>(*span);  // all come from MakeRecordable below
}

// An opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest. All spans of a process have one
// resource and one scope: those of the first.
std::string EncodeRequest(const Spans& spans) {
  const SpanEncoder& first = Encoded(spans[0]);
  const std::string resource = first.resource() == nullptr ? "" : EncodeResource(*first.resource());
  const std::string scope = first.scope() == nullptr ? "" : EncodeScope(*first.scope());
  size_t scope_spans = wire::FieldSize(scope.size());
  for (const auto& span : spans) scope_spans += wire::FieldSize(Encoded(span).bytes().size());
  const size_t resource_spans = wire::FieldSize(resource.size()) + wire::FieldSize(scope_spans);

  std::string request;
  request.reserve(wire::FieldSize(resource_spans));
  wire::AppendHead(request, request_field::kResourceSpans, resource_spans);
  wire::AppendBytes(request, resource_spans_field::kResource, resource);
  wire::AppendHead(request, resource_spans_field::kScopeSpans, scope_spans);
  wire::AppendBytes(request, scope_spans_field::kScope, scope);
  for (const auto& span : spans) wire::AppendBytes(request, scope_spans_field::kSpans, Encoded(span).bytes());
  return request;
}

class GrpcSpanExporter final : public trace::SpanExporter {
 public:
  explicit GrpcSpanExporter(const otlp::OtlpGrpcExporterOptions& options)
      : sender_(GrpcSender::Create(SenderOptions(options), kMethod)) {}

  std::unique_ptr<trace::Recordable> MakeRecordable() noexcept override {
    return std::make_unique<SpanEncoder>();
  }

  ExportResult Export(const Spans& spans) noexcept override {
    if (spans.empty()) return ExportResult::kSuccess;
    if (shut_down_) return ExportResult::kFailure;
    const std::string error = sender_->Send(EncodeRequest(spans));
    if (error.empty()) return ExportResult::kSuccess;
    OTEL_INTERNAL_LOG_ERROR("[OTLP spans over gRPC] " << error);
    return ExportResult::kFailure;
  }

  bool ForceFlush(std::chrono::microseconds) noexcept override { return true; }
  bool Shutdown(std::chrono::microseconds) noexcept override {
    shut_down_ = true;
    return true;
  }

 private:
  const std::unique_ptr<GrpcSender> sender_;
  std::atomic<bool> shut_down_ = false;
};

}  // namespace

std::unique_ptr<trace::SpanExporter> MakeGrpcSpanExporter(const otlp::OtlpGrpcExporterOptions& options) {
  return std::make_unique<GrpcSpanExporter>(options);
}

}  // namespace tensorcast::otel::sdk
