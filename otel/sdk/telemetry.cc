#include "otel/sdk/telemetry.h"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/steady_time.h"
#include "otel/api/attributes.h"
#include "otel/api/exporter_states.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/span.h"
#include "otel/sdk/log_sinks.h"
#include "otel/sdk/resource_metrics.h"

namespace tensorcast::otel {
namespace {

using sdk::Counters;
using sdk::SignalCounters;

// After a warning, how long telemetry has to have worked in between for another one.
constexpr absl::Duration kOutageGap = absl::Minutes(10);
// What an export that is given up may still take to return.
constexpr absl::Duration kGrace = absl::Milliseconds(200);

// One telemetry a process: the sinks are the process's.
std::atomic<bool> in_use{false};

// What a collector took. Metrics do not count: their export may work where that of the others does not.
uint64_t TotalExported(const Counters& counters) {
  return counters.of(sdk::Signal::kTraces).exported + counters.of(sdk::Signal::kLogs).exported;
}

uint64_t TotalDropped(const Counters& counters) {
  uint64_t dropped = 0;
  for (const SignalCounters& signal : counters.signals) dropped += signal.dropped();
  return dropped;
}

// Which setting to change where the protocol does not fit the endpoint. "" where nothing is sent to one.
std::string ProtocolAdvice(const sdk::BridgeOptions& options) {
  if (options.exporter == sdk::ExporterKind::kConsole) return "";
  const bool http = options.exporter == sdk::ExporterKind::kOtlpHttp;
  return absl::StrCat("check that the collector is up at observability.otel.endpoint and accepts OTLP over ",
                      http ? "HTTP" : "gRPC", " there; for OTLP over ",
                      http ? "gRPC (usual port 4317)" : "HTTP (usual port 4318)",
                      " set observability.otel.exporter to ", http ? "otlp_grpc" : "otlp_http",
                      ", or OTEL_EXPORTER_OTLP_PROTOCOL to ", http ? "grpc" : "http/protobuf");
}

// Where a certificate or the lack of TLS is the cause.
std::string_view TlsAdvice(std::string_view what) {
  for (const std::string_view word : {"SSL", "Ssl", "TLS", "certificate", "handshake"}) {
    if (absl::StrContains(what, word)) {
      return "check that observability.otel.tls.ca_file names the authority of the collector's certificate, "
             "and that an https:// endpoint speaks TLS; else ";
    }
  }
  return "";
}

// What exports said last, and what to do about it; one warning for each outage. Thread-safe.
class Troubles {
 public:
  explicit Troubles(std::string protocol_advice) : protocol_advice_(std::move(protocol_advice)) {}

  // Called wherever telemetry has trouble, possibly often and from any thread. What an outage costs is in
  // tc_telemetry_dropped_total; the log only says that there is one, and why.
  void Note(const Counters& counters, std::string_view what) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      last_ = std::string(what);
      if (what.starts_with(kSpans)) last_of_spans_ = last_;
      const SteadyTime now = SteadyNow();
      const uint64_t exported = TotalExported(counters);
      // The second condition: nothing was exported since the last warning, so this is still the same outage.
      if (now - warned_ < kOutageGap || exported == exported_then_) return;
      warned_ = now;
      exported_then_ = exported;
    }
    const AboutTelemetry guard;
    LOG(WARNING) << "telemetry: " << Explained(what) << " (" << TotalDropped(counters)
                 << " items dropped so far; tc_telemetry_dropped_total counts them)";
  }

  std::string Advice() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (last_.empty()) return "";
    return Explained(last_of_spans_.empty() ? last_ : last_of_spans_);
  }

 private:
  // How our exporter's lines begin, which say why; those of the SDK's exporter of metrics mostly do not.
  static constexpr std::string_view kSpans = "[OTLP spans ";

  std::string Explained(std::string_view what) const {
    if (protocol_advice_.empty()) return std::string(what);
    return absl::StrCat(what, "; ", TlsAdvice(what), protocol_advice_);
  }

  const std::string protocol_advice_;
  mutable absl::Mutex mutex_;
  std::string last_ ABSL_GUARDED_BY(mutex_);
  std::string last_of_spans_ ABSL_GUARDED_BY(mutex_);
  SteadyTime warned_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
  // At the last warning; no number of items before the first.
  std::optional<uint64_t> exported_then_ ABSL_GUARDED_BY(mutex_);
};

// Runs `work` on a thread of its own; false when it has not ended by then, and it goes on without us. Where
// no thread is to be had it runs on this one, for as long as it takes.
bool RunFor(absl::Duration timeout, std::function<void()> work) {
  struct Task {
    std::function<void()> work;
    absl::Notification done;
  };
  auto task = std::make_shared<Task>();
  task->work = std::move(work);
  // What it holds goes where it ran.
  const auto run = [](Task& running) {
    std::exchange(running.work, nullptr)();
    running.done.Notify();
  };
  try {
    std::thread([task, run] { run(*task); }).detach();
  } catch (const std::system_error&) {
    run(*task);
  }
  return task->done.WaitForNotificationWithTimeout(timeout);
}

std::vector<GaugeRegistration> ObserveCounters(const std::shared_ptr<Counters>& counters) {
  std::vector<GaugeRegistration> registrations;
  // `count`: a member of SignalCounters; the labels after the signal's are `more`.
  const auto observe = [&](auto metric, auto count, auto... more) {
    registrations.push_back(metric.Observe([counters, count, more...](auto& observer) {
      for (size_t i = 0; i < sdk::kSignals; ++i) {
        observer.Observe(static_cast<double>(counters->signals[i].*count), {sdk::kSignalNames[i], more...});
      }
    }));
  };
  observe(metrics::kTelemetryExported, &SignalCounters::exported);
  observe(metrics::kTelemetryDropped, &SignalCounters::dropped_queue_full, "queue_full");
  observe(metrics::kTelemetryDropped, &SignalCounters::dropped_export_failed, "export_failed");
  observe(metrics::kTelemetryDropped, &SignalCounters::dropped_shutdown, "shutdown");
  observe(metrics::kTelemetryExportFailures, &SignalCounters::export_failures);
  observe(metrics::kTelemetryQueueLength, &SignalCounters::pending);
  registrations.push_back(metrics::kTelemetryInternalErrors.Observe([counters](auto& observer) {
    observer.Observe(static_cast<double>(counters->sdk_errors), {"error"});
    observer.Observe(static_cast<double>(counters->sdk_warnings), {"warning"});
  }));
  return registrations;
}

// Without a name and password in front of the host.
std::string WithoutUser(std::string_view endpoint) {
  const size_t scheme = endpoint.find("://");
  const size_t host = scheme == std::string_view::npos ? 0 : scheme + 3;
  const size_t at = endpoint.substr(0, endpoint.find('/', host)).rfind('@');
  if (at == std::string_view::npos || at < host) return std::string(endpoint);
  return absl::StrCat(endpoint.substr(0, host), endpoint.substr(at + 1));
}

// Where the signals that are on go; what became of that is to be added.
std::vector<ExporterState> ExportersOf(const sdk::BridgeOptions& options) {
  std::vector<ExporterState> exporters;
  const bool on[sdk::kSignals] = {options.traces, options.metrics, options.logs};
  for (size_t i = 0; i < sdk::kSignals; ++i) {
    const bool console = options.ExporterOf(static_cast<sdk::Signal>(i)) == sdk::ExporterKind::kConsole;
    if (on[i]) {
      exporters.push_back(
          {.signal = sdk::kSignalNames[i], .endpoint = console ? "console" : WithoutUser(options.endpoint)});
    }
  }
  return exporters;
}

std::vector<ExporterState> Current(std::vector<ExporterState> exporters, const Counters& counters) {
  for (ExporterState& exporter : exporters) {
    for (size_t i = 0; i < sdk::kSignals; ++i) {
      if (exporter.signal != sdk::kSignalNames[i]) continue;
      exporter.error = counters.signals[i].last_error.Get();
      exporter.dropped = counters.signals[i].dropped();
    }
  }
  return exporters;
}

// The start installs the sinks, then switches telemetry on; the end does the opposite and then sends the
// rest. The sinks themselves live as long as the process: a thread may be in one of them while it is
// replaced.
class Enabled final : public Telemetry {
 public:
  Enabled(sdk::Options options, std::shared_ptr<Counters> counters, std::shared_ptr<Troubles> troubles)
      : shutdown_timeout_(options.shutdown_timeout),
        troubles_(std::move(troubles)),
        registrations_(ObserveCounters(counters)) {
    InstallExporterStates(
        [exporters = ExportersOf(options.bridge), counters] { return Current(exporters, *counters); });
    counters_ = std::move(counters);
    if (options.resource_metrics) {
      for (GaugeRegistration& gauge : sdk::ObserveResources()) registrations_.push_back(std::move(gauge));
    }
    auto bridge = sdk::Bridge::Create(options.bridge);
    // The sinks first, then the switch: code that finds telemetry on finds its sinks.
    AllowAllAttributes(options.all_attributes);
    InstallTraceSink(SinkKind::kTelemetry, bridge->traces());
    InstallMetricSink(bridge->metrics());
    if (options.bridge.logs) log_sink_ = std::make_unique<TelemetryLogSink>(bridge, options.log_level);
    internal::SetTelemetryEnabled(true);
    absl::MutexLock lock(&mutex_);
    bridge_ = std::move(bridge);
  }
  ~Enabled() override { Shutdown(); }

  bool enabled() const override { return true; }

  bool Flush(absl::Duration timeout) override {
    std::shared_ptr<sdk::Bridge> bridge;
    {
      absl::MutexLock lock(&mutex_);
      if (bridge_ == nullptr) return true;
      bridge = bridge_;
    }
    auto flushed = std::make_shared<std::atomic<bool>>(false);
    const bool ended = RunFor(timeout, [bridge, flushed, timeout] {
      *flushed = bridge->Flush(absl::ToChronoMilliseconds(timeout));
    });
    return ended && *flushed;
  }

  void Shutdown() override {
    std::shared_ptr<sdk::Bridge> bridge;
    {
      absl::MutexLock lock(&mutex_);
      bridge = std::move(bridge_);
      bridge_ = nullptr;
    }
    if (bridge == nullptr) return;
    // First nothing new may come, so that what is sent below is all.
    Disconnect();
    // No export is tried again past this; the thread below waits for one that is under way.
    bridge->GiveUpAt(std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(shutdown_timeout_));
    // The last reference goes with the thread, so that a stuck exporter keeps what it uses.
    const bool ended = RunFor(shutdown_timeout_ + kGrace, [bridge = std::move(bridge)]() mutable {
      bridge->Shutdown();
      bridge.reset();
    });
    if (!ended) {
      troubles_->Note(*counters_,
                      absl::StrCat("the collector did not accept all telemetry within ",
                                   absl::FormatDuration(shutdown_timeout_), ", so the rest was discarded"));
    }
    // After the last collection, which tells what became of the rest.
    registrations_.clear();
    in_use = false;
  }

  std::string Advice() const override { return troubles_->Advice(); }

 private:
  // Nothing new reaches the bridge from here on.
  void Disconnect() {
    InstallExporterStates(nullptr);
    log_sink_.reset();
    InstallTraceSink(SinkKind::kTelemetry, nullptr);
    InstallMetricSink(nullptr);
    internal::SetTelemetryEnabled(false);
    AllowAllAttributes(false);
  }

  const absl::Duration shutdown_timeout_;
  const std::shared_ptr<Troubles> troubles_;
  std::vector<GaugeRegistration> registrations_;  // read until the last collection
  std::unique_ptr<TelemetryLogSink> log_sink_;
  absl::Mutex mutex_;
  std::shared_ptr<sdk::Bridge> bridge_ ABSL_GUARDED_BY(mutex_);  // null once shut down
};

}  // namespace

absl::StatusOr<std::unique_ptr<Telemetry>> InitTelemetry(const v1::OtelConfig& config, std::string_view role,
                                                         const ResourceAttributes& resource) {
  absl::StatusOr<sdk::Options> options = sdk::ResolveOptions(config, role, resource);
  if (!options.ok()) return options.status();
  if (!options->enabled) return std::make_unique<Telemetry>();
  if (in_use.exchange(true)) {
    return absl::FailedPreconditionError(
        "start telemetry: this process already has telemetry; shut down the existing telemetry first");
  }
  auto counters = std::make_shared<Counters>();
  options->bridge.counters = counters.get();
  auto troubles = std::make_shared<Troubles>(ProtocolAdvice(options->bridge));
  options->bridge.complain = [counters, troubles](std::string_view what) { troubles->Note(*counters, what); };
  return std::make_unique<Enabled>(*std::move(options), std::move(counters), std::move(troubles));
}

}  // namespace tensorcast::otel
