#include "otel/sdk/grpc_exporters.h"

#include <atomic>
#include <fstream>
#include <iterator>
#include <string>

#include "opentelemetry/sdk/common/global_log_handler.h"
#include "otel/sdk/grpc_sender.h"
#include "otel/sdk/guards.h"
#include "otel/sdk/log_encoder.h"
#include "otel/sdk/protobuf_writer.h"
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

GrpcSenderOptions SenderOptions(const otlp::OtlpGrpcClientOptions& options) {
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
  Channel(const otlp::OtlpGrpcClientOptions& options, const char* method, const char* what)
      : sender_(GrpcSender::Create(SenderOptions(options), method)), what_(what) {}

  ExportResult Send(const std::string& request) noexcept {
    if (shut_down_) return ExportResult::kFailure;
    const GrpcSendResult sent = sender_->Send(request);
    if (sent.error.empty()) return ExportResult::kSuccess;
    export_trouble.final = !sent.retryable;
    OTEL_INTERNAL_LOG_ERROR("[OTLP " << what_ << " over gRPC] " << sent.error);
    return ExportResult::kFailure;
  }
  bool Shutdown() noexcept {
    shut_down_ = true;
    return true;
  }

 private:
  const std::unique_ptr<GrpcSender> sender_;
  const char* const what_;
  std::atomic<bool> shut_down_ = false;
};

class GrpcSpanExporter final : public trace::SpanExporter {
 public:
  explicit GrpcSpanExporter(const otlp::OtlpGrpcExporterOptions& options)
      : channel_(options, kTraceMethod, "spans") {}

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

class GrpcLogExporter final : public otel_logs::LogRecordExporter {
 public:
  explicit GrpcLogExporter(const otlp::OtlpGrpcLogRecordExporterOptions& options)
      : channel_(options, kLogMethod, "log records") {}

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

std::unique_ptr<trace::SpanExporter> MakeGrpcSpanExporter(const otlp::OtlpGrpcExporterOptions& options) {
  return std::make_unique<GrpcSpanExporter>(options);
}

std::unique_ptr<otel_logs::LogRecordExporter> MakeGrpcLogExporter(
    const otlp::OtlpGrpcLogRecordExporterOptions& options) {
  return std::make_unique<GrpcLogExporter>(options);
}

}  // namespace tensorcast::otel::sdk
