#include "otel/sdk/options.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/ids.h"
#include "otel/sdk/option_checks.h"

namespace tensorcast::otel::sdk {
namespace {

constexpr size_t kUsualBatch = 512;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string ToUrl(const std::string& text) {
  return absl::StrContains(text, "://") ? text : absl::StrCat("http://", text);
}

// The port of http://host:port/path or https://host:port/path; 0 where it names none.
uint32_t PortOf(std::string_view url) {
  if (!absl::ConsumePrefix(&url, "http://") && !absl::ConsumePrefix(&url, "https://")) return 0;
  const std::string_view authority = url.substr(0, url.find('/'));
  const size_t colon = authority.rfind(':');
  uint32_t port = 0;
  if (colon == std::string_view::npos || colon == 0) return 0;
  return absl::SimpleAtoi(authority.substr(colon + 1), &port) && port < 65536 ? port : 0;
}

// host:port, with or without a scheme, as a URL.
void CheckEndpoint(std::string_view key, const std::string& text, OptionChecks& check, std::string* out) {
  if (text.empty()) return;
  const std::string url = ToUrl(text);
  if (PortOf(url) == 0) return check.Fail(key, text, "http://host:port, https://host:port or host:port");
  *out = url;
}

// Where the signals go; "": the SDK's default. Those of single signals, which the SDK reads itself, count as
// far as they tell the protocol.
std::string EndpointInForce(const v1::OtelConfig& config) {
  if (!config.endpoint().empty()) return config.endpoint();
  for (const char* variable :
       {"TENSORCAST_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"}) {
    if (std::string endpoint = Environment(variable); !endpoint.empty()) return endpoint;
  }
  return "";
}

// The protocol where the configuration names no exporter: that of the standard variable, else the one that
// the endpoint's port is registered for.
ExporterKind UsualProtocol(const v1::OtelConfig& config, bool enabled, OptionChecks& check) {
  constexpr uint32_t kHttpPort = 4318;
  const std::string said = Environment("OTEL_EXPORTER_OTLP_PROTOCOL");
  if (said == "grpc") return ExporterKind::kOtlpGrpc;
  if (said == "http/protobuf") return ExporterKind::kOtlpHttp;
  if (!said.empty() && enabled) {
    check.Fail("exporter (from OTEL_EXPORTER_OTLP_PROTOCOL)", said, "one of grpc, http/protobuf");
  }
  return PortOf(ToUrl(EndpointInForce(config))) == kHttpPort ? ExporterKind::kOtlpHttp
                                                             : ExporterKind::kOtlpGrpc;
}

// The standard variable of each signal. `none` switches it off; otherwise the variable says where it goes,
// unless the configuration says where all go.
void ResolveSignalExporters(const v1::OtelConfig& config, OptionChecks& check, BridgeOptions& bridge) {
  constexpr const char* kVariables[kSignals] = {"OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER",
                                                "OTEL_LOGS_EXPORTER"};
  bool* const wanted[kSignals] = {&bridge.traces, &bridge.metrics, &bridge.logs};
  for (size_t i = 0; i < kSignals; ++i) {
    const std::string value = Environment(kVariables[i]);
    *wanted[i] = value != "none";
    if (!config.exporter().empty()) continue;
    check.Choice<bool>(absl::StrCat("exporter (from ", kVariables[i], ")"), value,
                       {{"otlp", false}, {"console", true}, {"none", false}}, &bridge.on_console[i]);
  }
}

void ResolveExporter(const v1::OtelConfig& config, OptionChecks& check, Options& options) {
  using Kind = std::optional<ExporterKind>;  // nullopt: none
  Kind kind = ExporterKind::kOtlpGrpc;
  if (config.exporter().empty()) kind = UsualProtocol(config, options.enabled, check);
  // What is configured stands above what the variables and the endpoint's port suggest.
  check.Choice<Kind>("exporter", config.exporter(),
                     {{"otlp_grpc", ExporterKind::kOtlpGrpc},
                      {"otlp_http", ExporterKind::kOtlpHttp},
                      {"console", ExporterKind::kConsole},
                      {"jaeger", ExporterKind::kOtlpGrpc},
                      {"none", std::nullopt}},
                     &kind);
  const bool debug = Environment("TENSORCAST_OTEL_DEBUG") == "1";
  if (debug) kind = ExporterKind::kConsole;
  // The configuration comes last, so that it stands above the variables of the standard.
  if (options.enabled && !debug) ResolveSignalExporters(config, check, options.bridge);
  if (!kind.has_value()) options.enabled = false;
  options.bridge.exporter = kind.value_or(ExporterKind::kOtlpGrpc);
  if (config.has_traces()) options.bridge.traces = config.traces();
  if (config.has_metrics()) options.bridge.metrics = config.metrics();
  if (config.has_logs()) options.bridge.logs = config.logs();
}

// The SDK's exporter of metrics over HTTP, as it is packaged, takes the setting and sends what it has as it
// is, with an error line for each export; ours of spans and log records do not compress.
void ResolveCompression(const v1::OtelConfig& config, OptionChecks& check, Options& options) {
  BridgeOptions& bridge = options.bridge;
  check.Choice<std::string>("compression", config.compression(), {{"none", "none"}, {"gzip", "gzip"}},
                            &bridge.compression);
  if (bridge.exporter != ExporterKind::kOtlpHttp) return;
  constexpr char kWanted[] =
      "possible with the exporter otlp_http; set compression to none, or the exporter to otlp_grpc";
  if (bridge.compression == "gzip") check.Fail("compression", "gzip", kWanted);
  if (!bridge.compression.empty() || !options.enabled) return;
  for (const char* variable :
       {"OTEL_EXPORTER_OTLP_COMPRESSION", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
        "OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "OTEL_EXPORTER_OTLP_LOGS_COMPRESSION"}) {
    if (Environment(variable) == "gzip") {
      check.Fail(absl::StrCat("compression (from ", variable, ")"), "gzip", kWanted);
    }
  }
}

// The SDK takes a file of authorities that it cannot read for an empty one, and each export would then fail
// without a word on it. An http:// endpoint needs none of these files.
void CheckStandardAuthorities(const v1::OtelConfig& config, OptionChecks& check, const Options& options) {
  if (!options.enabled || !config.tls().ca_file().empty() ||
      !absl::StartsWith(EndpointInForce(config), "https://")) {
    return;
  }
  for (const char* variable :
       {"OTEL_EXPORTER_OTLP_CERTIFICATE", "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "OTEL_EXPORTER_OTLP_LOGS_CERTIFICATE"}) {
    check.File(absl::StrCat("tls.ca_file (from ", variable, ")"), Environment(variable));
  }
}

void ResolveConnection(const v1::OtelConfig& config, OptionChecks& check, Options& options) {
  BridgeOptions& bridge = options.bridge;
  CheckEndpoint("endpoint", config.endpoint(), check, &bridge.endpoint);
  if (config.endpoint().empty()) {
    CheckEndpoint("endpoint (from TENSORCAST_OTLP_ENDPOINT)", Environment("TENSORCAST_OTLP_ENDPOINT"), check,
                  &bridge.endpoint);
  }
  check.Pairs("headers", config.headers(), &bridge.headers);
  check.File("tls.ca_file", config.tls().ca_file());
  check.File("tls.cert_file", config.tls().cert_file());
  check.File("tls.key_file", config.tls().key_file());
  CheckStandardAuthorities(config, check, options);
  if (config.tls().cert_file().empty() != config.tls().key_file().empty()) {
    const bool no_key = config.tls().key_file().empty();
    check.FailAlone(no_key ? "tls.key_file" : "tls.cert_file", no_key ? "tls.cert_file" : "tls.key_file",
                    no_key ? config.tls().cert_file() : config.tls().key_file());
  }
  const bool http_only = !config.tls().cert_file().empty() || config.tls().insecure_skip_verify();
  if (http_only && bridge.exporter == ExporterKind::kOtlpGrpc) {
    check.Fail("exporter", config.exporter(),
               "otlp_http, the only exporter that supports tls.cert_file and tls.insecure_skip_verify");
  }
  bridge.ca_file = config.tls().ca_file();
  bridge.cert_file = config.tls().cert_file();
  bridge.key_file = config.tls().key_file();
  bridge.insecure_skip_verify = config.tls().insecure_skip_verify();
  // The SDK's own is 10 s, longer than shutdown_timeout: an export that is stuck would outlive the process's
  // end.
  if (Environment("OTEL_EXPORTER_OTLP_TIMEOUT").empty()) bridge.timeout = std::chrono::seconds(3);
  check.Milliseconds("timeout", config.timeout(), &bridge.timeout);
  check.Milliseconds("retry_for", config.retry_for(), &bridge.retry_for);
  ResolveCompression(config, check, options);
}

// OTEL_TRACES_SAMPLER and its argument. The standard's samplers that leave the decision to another service
// are not supported.
void ResolveStandardSampler(OptionChecks& check, BridgeOptions& bridge) {
  struct Standard {
    SamplerKind kind = SamplerKind::kParentRatio;
    std::optional<double> ratio;  // nullopt: the argument's
  };
  const std::string name = Environment("OTEL_TRACES_SAMPLER");
  if (name.empty()) return;
  Standard sampler;
  check.Choice<Standard>("sampler (from OTEL_TRACES_SAMPLER)", name,
                         {{"always_on", {SamplerKind::kAlwaysOn, 1.0}},
                          {"always_off", {SamplerKind::kAlwaysOff, 0.0}},
                          {"traceidratio", {SamplerKind::kRatio, std::nullopt}},
                          {"parentbased_always_on", {SamplerKind::kParentRatio, 1.0}},
                          {"parentbased_always_off", {SamplerKind::kParentRatio, 0.0}},
                          {"parentbased_traceidratio", {SamplerKind::kParentRatio, std::nullopt}}},
                         &sampler);
  bridge.sampler = sampler.kind;
  if (sampler.ratio.has_value()) bridge.sampling_ratio = *sampler.ratio;
  const std::string argument = Environment("OTEL_TRACES_SAMPLER_ARG");
  if (sampler.ratio.has_value() || argument.empty()) return;
  check.Ratio("sampling_ratio (from OTEL_TRACES_SAMPLER_ARG)", argument, &bridge.sampling_ratio);
}

void ResolveSampling(const v1::OtelConfig& config, OptionChecks& check, Options& options) {
  BridgeOptions& bridge = options.bridge;
  // The standard's two variables are one setting: either the configuration says it, or they do, never half of
  // each.
  const bool configured = !config.sampler().empty() || config.has_sampling_ratio();
  if (options.enabled && !configured) ResolveStandardSampler(check, bridge);
  check.Choice<SamplerKind>("sampler", config.sampler(),
                            {{"parent_ratio", SamplerKind::kParentRatio},
                             {"ratio", SamplerKind::kRatio},
                             {"always_on", SamplerKind::kAlwaysOn},
                             {"always_off", SamplerKind::kAlwaysOff}},
                            &bridge.sampler);
  if (config.has_sampling_ratio()) {
    check.Ratio("sampling_ratio", absl::StrCat(config.sampling_ratio()), &bridge.sampling_ratio);
  }
  check.Count("max_span_attributes", config.max_span_attributes(), &bridge.limits.max_attributes);
  check.Count("max_span_events", config.max_span_events(), &bridge.limits.max_events);
  check.Count("max_span_links", config.max_span_links(), &bridge.limits.max_links);
  check.Count("max_attribute_bytes", config.max_attribute_bytes(), &bridge.limits.max_attribute_bytes);
}

void ResolveQueues(const v1::OtelConfig& config, OptionChecks& check, Options& options) {
  BridgeOptions& bridge = options.bridge;
  check.Count("queue_size", config.queue_size(), &bridge.queue_size);
  // Fits a queue that was made smaller than the usual batch.
  bridge.batch_size = std::min(kUsualBatch, bridge.queue_size);
  check.Count("batch_size", config.batch_size(), &bridge.batch_size);
  if (bridge.batch_size > bridge.queue_size) {
    check.Fail("batch_size", absl::StrCat(bridge.batch_size),
               absl::StrCat("at most queue_size, which is ", bridge.queue_size));
  }
  check.Milliseconds("batch_interval", config.batch_interval(), &bridge.batch_interval);
  check.Milliseconds("metric_interval", config.metric_interval(), &bridge.metric_interval);
  check.Duration("shutdown_timeout", config.shutdown_timeout(), &options.shutdown_timeout);
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

// Last in the list wins at the SDK: ours, then what the configuration says. What the environment names is
// taken out of ours, since the SDK puts ours above it.
void ResolveResource(const v1::OtelConfig& config, std::string_view role, const ResourceAttributes& resource,
                     OptionChecks& check, BridgeOptions& bridge) {
  std::string service = config.service_name();
  if (service.empty()) service = Environment("OTEL_SERVICE_NAME");
  if (service.empty()) service = absl::StrCat("tensorcast-", role);
  bridge.resource = {{"service.name", service},
                     {"service.namespace", "tensorcast"},
                     {"service.instance.id", NewUuid()},
                     {"tc.role", std::string(role)},
                     {"service.version", TENSORCAST_VERSION},
                     {"host.name", HostName()},
                     {"process.pid", absl::StrCat(getpid())}};
  bridge.resource.insert(bridge.resource.end(), resource.begin(), resource.end());
  // What OTEL_RESOURCE_ATTRIBUTES names is the SDK's to take from there, unless it was said more clearly.
  const bool named = !config.service_name().empty() || !Environment("OTEL_SERVICE_NAME").empty();
  for (const std::string_view pair :
       absl::StrSplit(Environment("OTEL_RESOURCE_ATTRIBUTES"), ',', absl::SkipWhitespace())) {
    const std::string_view key = absl::StripAsciiWhitespace(pair.substr(0, pair.find('=')));
    if (key == "service.name" && named) continue;
    std::erase_if(bridge.resource, [&](const auto& ours) { return ours.first == key; });
  }
  // Later ones win.
  check.Pairs("resource_attributes", config.resource_attributes(), &bridge.resource);
}

}  // namespace

// Except for the switches TENSORCAST_OTEL_DEBUG and OTEL_SDK_DISABLED, the configuration stands above the
// environment. Where both set one value, the stronger source is assigned last.
absl::StatusOr<Options> ResolveOptions(const v1::OtelConfig& config, std::string_view role,
                                       const ResourceAttributes& resource) {
  Options options;
  // TENSORCAST_OTEL_DEBUG switches telemetry on; the standard's OTEL_SDK_DISABLED has the last word.
  options.enabled = (config.enabled() || Environment("TENSORCAST_OTEL_DEBUG") == "1") &&
                    Environment("OTEL_SDK_DISABLED") != "true";
  OptionChecks check;
  ResolveExporter(config, check, options);
  ResolveConnection(config, check, options);
  ResolveSampling(config, check, options);
  ResolveQueues(config, check, options);
  ResolveResource(config, role, resource, check, options.bridge);
  check.Choice<absl::LogSeverity>("log_level", config.log_level(),
                                  {{"info", absl::LogSeverity::kInfo},
                                   {"warning", absl::LogSeverity::kWarning},
                                   {"error", absl::LogSeverity::kError}},
                                  &options.log_level);
  options.all_attributes = config.all_attributes();
  options.bridge.file_paths = config.file_paths();
  options.resource_metrics = !config.has_resource_metrics() || config.resource_metrics();
  if (!check.status().ok()) return check.status();
  return options;
}

}  // namespace tensorcast::otel::sdk
