#include "otel/sdk/options.h"

#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "otel/api/request_context.h"

namespace tensorcast::otel::sdk {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::Status Wrong(std::string_view key, std::string_view value, std::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("observability.otel.", key, ": \"", value, "\" is not ", wanted));
}

// Gathers the first error, so that the checks below can be written one after the other.
class Checker {
 public:
  const absl::Status& status() const { return status_; }
  void Fail(std::string_view key, std::string_view value, std::string_view wanted) {
    status_.Update(Wrong(key, value, wanted));
  }

  void Duration(std::string_view key, const std::string& text, absl::Duration* out) {
    absl::Duration parsed;
    if (text.empty()) return;
    if (!absl::ParseDuration(text, &parsed) || parsed < absl::Milliseconds(1) || parsed > absl::Hours(24)) {
      return Fail(key, text, "a duration between 1ms and 24h, such as 250ms or 10s");
    }
    *out = parsed;
  }

  void Milliseconds(std::string_view key, const std::string& text, std::chrono::milliseconds* out) {
    absl::Duration parsed = absl::FromChrono(*out);
    Duration(key, text, &parsed);
    *out = absl::ToChronoMilliseconds(parsed);
  }

  void Count(std::string_view key, int32_t value, size_t* out) {
    if (value < 0) return Fail(key, absl::StrCat(value), "a positive number");
    if (value > 0) *out = static_cast<size_t>(value);
  }

  template <class T>
  void Choice(std::string_view key, const std::string& value,
              std::initializer_list<std::pair<std::string_view, T>> choices, T* out) {
    if (value.empty()) return;
    std::string names;
    for (const auto& [name, choice] : choices) {
      if (name == value) {
        *out = choice;
        return;
      }
      absl::StrAppend(&names, names.empty() ? "" : ", ", name);
    }
    Fail(key, value, absl::StrCat("one of ", names));
  }

  void Pairs(std::string_view key, const std::vector<std::string>& texts,
             std::vector<std::pair<std::string, std::string>>* out) {
    for (const std::string& text : texts) {
      std::pair<std::string, std::string> pair = absl::StrSplit(text, absl::MaxSplits('=', 1));
      if (pair.first.empty() || !absl::StrContains(text, '=')) return Fail(key, text, "key=value");
      out->push_back(std::move(pair));
    }
  }

  void File(std::string_view key, const std::string& path) {
    if (!path.empty() && access(path.c_str(), R_OK) != 0) Fail(key, path, "a file that can be read");
  }

 private:
  absl::Status status_;
};

// host:port, with or without a scheme, as a URL.
void CheckEndpoint(std::string_view key, const std::string& text, Checker& check, std::string* out) {
  if (text.empty()) return;
  const std::string url = absl::StrContains(text, "://") ? text : absl::StrCat("http://", text);
  std::string_view rest = url;
  const bool known = absl::ConsumePrefix(&rest, "http://") || absl::ConsumePrefix(&rest, "https://");
  const std::string_view authority = rest.substr(0, rest.find('/'));
  const size_t colon = authority.rfind(':');
  uint32_t port = 0;
  const bool has_port = colon != std::string_view::npos && colon > 0 &&
                        absl::SimpleAtoi(authority.substr(colon + 1), &port) && port > 0 && port < 65536;
  if (!known || !has_port) return check.Fail(key, text, "http://host:port, https://host:port or host:port");
  *out = url;
}

void ResolveExporter(const TelemetryConfig& config, Checker& check, Options& options) {
  enum class Choice { kGrpc, kHttp, kConsole, kNone };
  Choice choice =
      Environment("OTEL_EXPORTER_OTLP_PROTOCOL") == "http/protobuf" ? Choice::kHttp : Choice::kGrpc;
  check.Choice<Choice>("exporter", config.exporter,
                       {{"otlp_grpc", Choice::kGrpc},
                        {"otlp_http", Choice::kHttp},
                        {"console", Choice::kConsole},
                        {"jaeger", Choice::kGrpc},
                        {"none", Choice::kNone}},
                       &choice);
  if (Environment("TENSORCAST_OTEL_DEBUG") == "1") {
    options.enabled = true;
    choice = Choice::kConsole;
  }
  if (choice == Choice::kNone || Environment("OTEL_SDK_DISABLED") == "true") options.enabled = false;
  options.bridge.exporter = choice == Choice::kHttp      ? ExporterKind::kOtlpHttp
                            : choice == Choice::kConsole ? ExporterKind::kConsole
                                                         : ExporterKind::kOtlpGrpc;
}

void ResolveConnection(const TelemetryConfig& config, Checker& check, BridgeOptions& bridge) {
  CheckEndpoint("endpoint", config.endpoint, check, &bridge.endpoint);
  if (config.endpoint.empty()) {
    CheckEndpoint("endpoint (from TENSORCAST_OTLP_ENDPOINT)", Environment("TENSORCAST_OTLP_ENDPOINT"), check,
                  &bridge.endpoint);
  }
  check.Pairs("headers", config.headers, &bridge.headers);
  check.File("tls.ca_file", config.ca_file);
  check.File("tls.cert_file", config.cert_file);
  check.File("tls.key_file", config.key_file);
  if (config.cert_file.empty() != config.key_file.empty()) {
    check.Fail("tls.key_file", config.key_file, "given together with tls.cert_file");
  }
  const bool http_only = !config.cert_file.empty() || config.insecure_skip_verify;
  if (http_only && bridge.exporter == ExporterKind::kOtlpGrpc) {
    check.Fail("exporter", config.exporter,
               "otlp_http, which alone knows tls.cert_file and tls.insecure_skip_verify");
  }
  bridge.ca_file = config.ca_file;
  bridge.cert_file = config.cert_file;
  bridge.key_file = config.key_file;
  bridge.insecure_skip_verify = config.insecure_skip_verify;
  if (Environment("OTEL_EXPORTER_OTLP_TIMEOUT").empty()) bridge.timeout = std::chrono::seconds(3);
  check.Milliseconds("timeout", config.timeout, &bridge.timeout);
  check.Choice<std::string>("compression", config.compression, {{"none", "none"}, {"gzip", "gzip"}},
                            &bridge.compression);
}

void ResolveSampling(const TelemetryConfig& config, Checker& check, BridgeOptions& bridge) {
  check.Choice<SamplerKind>("sampler", config.sampler,
                            {{"parent_ratio", SamplerKind::kParentRatio},
                             {"always_on", SamplerKind::kAlwaysOn},
                             {"always_off", SamplerKind::kAlwaysOff}},
                            &bridge.sampler);
  bridge.sampling_ratio = config.sampling_ratio.value_or(1.0);
  if (!(bridge.sampling_ratio >= 0 && bridge.sampling_ratio <= 1)) {
    check.Fail("sampling_ratio", absl::StrCat(bridge.sampling_ratio), "between 0 and 1");
  }
  check.Count("max_span_attributes", config.max_span_attributes, &bridge.limits.max_attributes);
  check.Count("max_span_events", config.max_span_events, &bridge.limits.max_events);
  check.Count("max_span_links", config.max_span_links, &bridge.limits.max_links);
  check.Count("max_attribute_bytes", config.max_attribute_bytes, &bridge.limits.max_attribute_bytes);
}

void ResolveQueues(const TelemetryConfig& config, Checker& check, Options& options) {
  BridgeOptions& bridge = options.bridge;
  check.Count("queue_size", config.queue_size, &bridge.queue_size);
  bridge.batch_size = std::min<size_t>(bridge.batch_size, bridge.queue_size);
  check.Count("batch_size", config.batch_size, &bridge.batch_size);
  if (bridge.batch_size > bridge.queue_size) {
    check.Fail("batch_size", absl::StrCat(bridge.batch_size),
               absl::StrCat("at most queue_size, which is ", bridge.queue_size));
  }
  check.Milliseconds("batch_interval", config.batch_interval, &bridge.batch_interval);
  check.Milliseconds("metric_interval", config.metric_interval, &bridge.metric_interval);
  if (bridge.metric_interval < std::chrono::milliseconds(10)) {
    check.Fail("metric_interval", config.metric_interval, "at least 10ms");
  }
  check.Duration("shutdown_timeout", config.shutdown_timeout, &options.shutdown_timeout);
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

void ResolveResource(const TelemetryConfig& config, std::string_view role, Checker& check,
                     BridgeOptions& bridge) {
  std::string service = config.service_name;
  if (service.empty()) service = Environment("OTEL_SERVICE_NAME");
  if (service.empty()) service = absl::StrCat("tensorcast-", role);
  bridge.resource = {{"service.name", service},          {"service.namespace", "tensorcast"},
                     {"service.instance.id", NewUuid()}, {"tc.role", std::string(role)},
                     {"host.name", HostName()},          {"process.pid", absl::StrCat(getpid())}};
  // Later ones win.
  check.Pairs("resource_attributes", config.resource_attributes, &bridge.resource);
}

}  // namespace

absl::StatusOr<Options> ResolveOptions(const TelemetryConfig& config, std::string_view role) {
  Options options;
  Checker check;
  options.enabled = config.enabled;
  ResolveExporter(config, check, options);
  ResolveConnection(config, check, options.bridge);
  ResolveSampling(config, check, options.bridge);
  ResolveQueues(config, check, options);
  ResolveResource(config, role, check, options.bridge);
  options.bridge.traces = config.traces.value_or(true);
  options.bridge.metrics = config.metrics.value_or(true);
  options.bridge.logs = config.logs.value_or(true);
  check.Choice<absl::LogSeverity>("log_level", config.log_level,
                                  {{"info", absl::LogSeverity::kInfo},
                                   {"warning", absl::LogSeverity::kWarning},
                                   {"error", absl::LogSeverity::kError}},
                                  &options.log_level);
  options.all_attributes = config.all_attributes;
  options.resource_metrics = config.resource_metrics.value_or(true);
  if (!check.status().ok()) return check.status();
  return options;
}

}  // namespace tensorcast::otel::sdk
