#include "otel/sdk/bridge.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "opentelemetry/logs/logger.h"
#include "opentelemetry/nostd/shared_ptr.h"
#include "opentelemetry/sdk/common/global_log_handler.h"
#include "opentelemetry/sdk/logs/batch_log_record_processor_factory.h"
#include "opentelemetry/sdk/logs/batch_log_record_processor_options.h"
#include "opentelemetry/sdk/logs/logger_provider.h"
#include "opentelemetry/sdk/logs/logger_provider_factory.h"
#include "opentelemetry/sdk/logs/simple_log_record_processor_factory.h"
#include "opentelemetry/sdk/metrics/export/periodic_exporting_metric_reader_factory.h"
#include "opentelemetry/sdk/metrics/export/periodic_exporting_metric_reader_options.h"
#include "opentelemetry/sdk/metrics/meter_provider.h"
#include "opentelemetry/sdk/metrics/metric_reader.h"
#include "opentelemetry/sdk/metrics/view/view_registry.h"
#include "opentelemetry/sdk/resource/resource.h"
#include "opentelemetry/sdk/trace/batch_span_processor_factory.h"
#include "opentelemetry/sdk/trace/batch_span_processor_options.h"
#include "opentelemetry/sdk/trace/samplers/always_off_factory.h"
#include "opentelemetry/sdk/trace/samplers/always_on_factory.h"
#include "opentelemetry/sdk/trace/samplers/parent_factory.h"
#include "opentelemetry/sdk/trace/samplers/trace_id_ratio_factory.h"
#include "otel/api/trace_sink.h"
#include "otel/sdk/exporters.h"
#include "otel/sdk/guards.h"
#include "otel/sdk/metric_bridge.h"
#include "otel/sdk/trace_bridge.h"
#include "otel/sdk/values.h"

namespace tensorcast::otel::sdk {
namespace {

namespace internal_log = opentelemetry::sdk::common::internal_log;
using opentelemetry::nostd::shared_ptr;

// Longer log lines are cut.
constexpr size_t kMaxLogBytes = 16 << 10;

// Off on a thread while it does what the SDK would complain of for no reason.
thread_local bool sdk_may_complain = true;

class SdkLogHandler final : public internal_log::LogHandler {
 public:
  SdkLogHandler(Counters& counters, Complain complain)
      : counters_(counters), complain_(std::move(complain)) {}
  void Handle(internal_log::LogLevel level, const char*, int, const char* message,
              const opentelemetry::sdk::common::AttributeMap&) noexcept override {
    if (!sdk_may_complain) return;
    if (level == internal_log::LogLevel::Error) {
      ++counters_.sdk_errors;
      NoteExport(message == nullptr ? "" : message);
      // An export that runs on this thread and fails has its reason here.
      export_trouble.error = message == nullptr ? "" : message;
    } else if (level == internal_log::LogLevel::Warning) {
      ++counters_.sdk_warnings;
    } else {
      return;
    }
    complain_(message == nullptr ? "" : message);
  }

 private:
  // Which of the SDK's errors are about an export, and what they say of it. Not every one is: a setting that
  // the SDK does not know is an error, too, with each export that works without.
  void NoteExport(std::string_view message) {
    constexpr std::string_view kAnswer = "[OTLP HTTP Client] Export failed, Status:";
    if (message.starts_with(kAnswer)) {
      // From the thread that spoke to the collector, before the exporter's own line below.
      http_status_ = std::atoi(std::string(message.substr(kAnswer.size(), 3)).c_str());
    } else if (message.starts_with("[OTLP ") &&
               message.find("HTTP Exporter] ERROR: Export ") != message.npos) {
      export_trouble = {.failed = true, .final = IsFinal(http_status_.exchange(0))};
    }
  }
  // As OTLP's specification has it. 0: there was no answer.
  static bool IsFinal(int status) {
    return status != 0 && status != 429 && status != 502 && status != 503 && status != 504;
  }

  Counters& counters_;
  const Complain complain_;
  // Of the last answer to an export of metrics that was an error.
  std::atomic<int> http_status_ = 0;
};

// Decides for the root of a trace. With kParentRatio a span with a parent follows the parent.
std::unique_ptr<opentelemetry::sdk::trace::Sampler> MakeSampler(const BridgeOptions& options) {
  using namespace opentelemetry::sdk::trace;
  switch (options.sampler) {
    case SamplerKind::kParentRatio:
      return ParentBasedSamplerFactory::Create(
          std::shared_ptr<Sampler>(TraceIdRatioBasedSamplerFactory::Create(options.sampling_ratio)));
    case SamplerKind::kRatio:
      return TraceIdRatioBasedSamplerFactory::Create(options.sampling_ratio);
    case SamplerKind::kAlwaysOn:
      return AlwaysOnSamplerFactory::Create();
    case SamplerKind::kAlwaysOff:
      return AlwaysOffSamplerFactory::Create();
  }
  return AlwaysOffSamplerFactory::Create();
}

opentelemetry::logs::Severity ToSeverity(int severity) {
  using opentelemetry::logs::Severity;
  constexpr Severity kSeverities[] = {Severity::kInfo, Severity::kWarn, Severity::kError, Severity::kFatal};
  return severity >= 0 && severity < 4 ? kSeverities[severity] : Severity::kInfo;
}

// What is collected next tells all that a metrics batch had and more: no reason to keep that waiting.
std::chrono::milliseconds RetryFor(Signal signal, const BridgeOptions& options) {
  return signal == Signal::kMetrics ? std::min(options.retry_for, options.metric_interval / 2)
                                    : options.retry_for;
}

// The way of an item: the sink or EmitLog asks the guard (Admit), the SDK's batch processor queues it, the
// processor's thread exports it through the guard (Run), which retries and counts. Metrics have no queue: the
// reader's thread collects and exports at each interval. Nothing that instrumented code calls waits for one
// of these threads.
class BridgeImpl final : public Bridge {
 public:
  BridgeImpl(const BridgeOptions& options, Exporters exporters) : counters_(*options.counters) {
    // Must be set before the first provider is made.
    internal_log::GlobalLogHandler::SetLogHandler(
        shared_ptr<internal_log::LogHandler>(new SdkLogHandler(*options.counters, options.complain)));
    internal_log::GlobalLogHandler::SetLogLevel(internal_log::LogLevel::Warning);
    // A guard admits no more items than its queue holds, so that each item that is dropped is counted.
    for (size_t i = 0; i < kSignals; ++i) {
      guards_[i] = std::make_shared<Guard>(options.counters->signals[i], options.queue_size,
                                           RetryFor(static_cast<Signal>(i), options), options.complain);
    }
    const opentelemetry::sdk::resource::Resource resource = MakeResource(options);
    if (exporters.spans != nullptr) StartTraces(options, std::move(exporters.spans), resource);
    if (exporters.metrics != nullptr) StartMetrics(options, std::move(exporters.metrics), resource);
    if (exporters.logs != nullptr) StartLogs(options, std::move(exporters.logs), resource);
  }

  // Null where the signal is off.
  TraceSink* traces() override { return traces_; }
  MetricSink* metrics() override { return metrics_; }

  void EmitLog(const LogLine& line) override {
    if (!logger_) return;
    auto record = logger_->CreateLogRecord();
    if (record == nullptr) return;
    std::string storage;
    record->SetTimestamp(opentelemetry::common::SystemTimestamp(line.time));
    record->SetSeverity(ToSeverity(line.severity));
    record->SetBody(ToNostd(ValidUtf8(CutUtf8(line.message, kMaxLogBytes), storage)));
    record->SetAttribute("code.file.path", ToNostd(line.file));
    record->SetAttribute("code.line.number", static_cast<int64_t>(line.line));
    record->SetAttribute("thread.id", line.thread);
    if (line.trace.IsValid()) {
      using namespace opentelemetry::trace;
      record->SetTraceId(
          TraceId(opentelemetry::nostd::span<const uint8_t, 16>(line.trace.trace_id.data(), 16)));
      record->SetSpanId(SpanId(opentelemetry::nostd::span<const uint8_t, 8>(line.trace.span_id.data(), 8)));
      record->SetTraceFlags(TraceFlags(line.trace.flags));
    }
    // A full queue drops the line here, and counts it.
    if (guard(Signal::kLogs)->Admit()) logger_->EmitLogRecord(std::move(record));
  }

  bool Flush(std::chrono::milliseconds timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    const bool spans = FlushBy(deadline, Signal::kTraces, span_processor_.get());
    const bool logs = FlushBy(deadline, Signal::kLogs, logger_provider_.get());
    const bool done = spans && logs;
    // The metrics end last, since they tell what became of the spans and the log lines.
    return done && ExportMetrics();
  }

  void GiveUpAt(std::chrono::steady_clock::time_point when) override {
    for (const auto& guard : guards_) guard->GiveUpAt(when);
  }

  void Shutdown() override {
    // Both send what they have, each try bounded by GiveUpAt.
    for (const Signal signal : {Signal::kTraces, Signal::kLogs}) guard(signal)->End();
    if (span_processor_ != nullptr) span_processor_->Shutdown();
    if (logger_provider_ != nullptr) logger_provider_->Shutdown();
    for (const Signal signal : {Signal::kTraces, Signal::kLogs}) guard(signal)->DropRest();
    // Last: it still tells what became of the others' items.
    ExportMetrics();
    EndMetrics();
  }

 private:
  // The SDK's reader does not collect once more when it is shut down, and its flush may take an interval.
  bool ExportMetrics() {
    // Held during the export, unlike any lock of instrumented code: only a flush and a shutdown take it, both
    // on a thread that their caller waits for with a timeout.
    const std::lock_guard lock(metric_mutex_);
    if (metric_reader_ == nullptr) return true;
    return metric_reader_->Collect([this](otel_metrics::ResourceMetrics& data) {
      return metric_exporter_->Export(data) == otel_common::ExportResult::kSuccess;
    });
  }

  void EndMetrics() {
    const std::lock_guard lock(metric_mutex_);
    if (meter_provider_ == nullptr) return;
    meter_provider_->Shutdown();
    // The destructor shuts down once more, and the SDK complains about that.
    sdk_may_complain = false;
    meter_provider_.reset();
    metric_reader_.reset();
    sdk_may_complain = true;
  }

  // The SDK's queues may miss the wake-up of a flush and then sleep for the rest of a batch interval, so they
  // are woken again. An empty queue needs no flush.
  template <class Queue>
  bool FlushBy(std::chrono::steady_clock::time_point deadline, Signal signal, Queue* queue) {
    constexpr std::chrono::milliseconds kWakeAgain(50);
    while (counters_.of(signal).pending > 0 && !queue->ForceFlush(kWakeAgain)) {
      if (guard(signal)->ended() || std::chrono::steady_clock::now() >= deadline) return false;
    }
    return true;
  }

  const std::shared_ptr<Guard>& guard(Signal signal) { return guards_[static_cast<size_t>(signal)]; }

  void StartTraces(const BridgeOptions& options, std::unique_ptr<otel_trace::SpanExporter> exporter,
                   const opentelemetry::sdk::resource::Resource& resource) {
    otel_trace::BatchSpanProcessorOptions batch;
    batch.max_queue_size = options.queue_size;
    batch.max_export_batch_size = options.batch_size;
    batch.schedule_delay_millis = options.batch_interval;
    span_processor_ = otel_trace::BatchSpanProcessorFactory::Create(
        std::make_unique<GuardedSpanExporter>(std::move(exporter), guard(Signal::kTraces)), batch);
    traces_ = KeepForever(MakeTraceSink({.processor = span_processor_,
                                         .guard = guard(Signal::kTraces),
                                         .sampler_kind = options.sampler,
                                         .sampler = MakeSampler(options),
                                         .resource = resource,
                                         .limits = options.limits,
                                         .file_paths = options.file_paths}));
  }

  void StartMetrics(const BridgeOptions& options, std::unique_ptr<otel_metrics::PushMetricExporter> exporter,
                    const opentelemetry::sdk::resource::Resource& resource) {
    otel_metrics::PeriodicExportingMetricReaderOptions period;
    period.export_interval_millis = options.metric_interval;
    // The SDK wants the timeout to be the shorter of the two.
    period.export_timeout_millis = options.metric_interval / 2;
    meter_provider_ = std::make_shared<otel_metrics::MeterProvider>(
        std::make_unique<otel_metrics::ViewRegistry>(), resource);
    AddViews(*meter_provider_);
    auto guarded = std::make_unique<GuardedMetricExporter>(std::move(exporter), guard(Signal::kMetrics));
    metric_exporter_ = guarded.get();
    metric_reader_ = otel_metrics::PeriodicExportingMetricReaderFactory::Create(std::move(guarded), period);
    meter_provider_->AddMetricReader(metric_reader_);
    metrics_ = KeepForever(MakeMetricSink(meter_provider_->GetMeter(kScopeName, kScopeVersion, kSchemaUrl)));
  }

  void StartLogs(const BridgeOptions& options, std::unique_ptr<otel_logs::LogRecordExporter> exporter,
                 const opentelemetry::sdk::resource::Resource& resource) {
    otel_logs::BatchLogRecordProcessorOptions batch;
    batch.max_queue_size = options.queue_size;
    batch.max_export_batch_size = options.batch_size;
    batch.schedule_delay_millis = options.batch_interval;
    auto guarded = std::make_unique<GuardedLogExporter>(std::move(exporter), guard(Signal::kLogs));
    // A record for the console only points at the line's text, so it is printed while the line lives.
    auto processor = options.ExporterOf(Signal::kLogs) == ExporterKind::kConsole
                         ? otel_logs::SimpleLogRecordProcessorFactory::Create(std::move(guarded))
                         : otel_logs::BatchLogRecordProcessorFactory::Create(std::move(guarded), batch);
    logger_provider_ = otel_logs::LoggerProviderFactory::Create(std::move(processor), resource);
    logger_ = logger_provider_->GetLogger(kScopeName, kScopeName, kScopeVersion, kSchemaUrl);
  }

  const Counters& counters_;
  std::shared_ptr<Guard> guards_[kSignals];
  std::shared_ptr<otel_trace::SpanProcessor> span_processor_;
  std::mutex metric_mutex_;  // of the three below, once they are made
  std::shared_ptr<otel_metrics::MeterProvider> meter_provider_;
  std::shared_ptr<otel_metrics::MetricReader> metric_reader_;
  GuardedMetricExporter* metric_exporter_ = nullptr;  // the reader's
  std::shared_ptr<otel_logs::LoggerProvider> logger_provider_;
  shared_ptr<opentelemetry::logs::Logger> logger_{};
  TraceSink* traces_ = nullptr;
  MetricSink* metrics_ = nullptr;
};

}  // namespace

std::shared_ptr<Bridge> MakeBridge(const BridgeOptions& options, Exporters exporters) {
  return std::make_shared<BridgeImpl>(options, std::move(exporters));
}

std::shared_ptr<Bridge> Bridge::Create(const BridgeOptions& options) {
  return MakeBridge(options, MakeExporters(options));
}

}  // namespace tensorcast::otel::sdk
