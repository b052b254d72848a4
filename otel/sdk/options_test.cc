#include "otel/sdk/options.h"
#include "otel/sdk/testing/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/config/config.h"

namespace tensorcast::otel::sdk::options_test {
namespace {

using tensorcast::otel::testing::OtelConfig;
using ::testing::_;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

class OptionsTest : public ::testing::Test {
 protected:
  OptionsTest() { Clear(); }
  ~OptionsTest() override { Clear(); }
  static void Clear() {
    for (const char* name :
         {"TENSORCAST_OTLP_ENDPOINT", "TENSORCAST_OTEL_DEBUG", "OTEL_SDK_DISABLED", "OTEL_SERVICE_NAME",
          "OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_TRACES_SAMPLER",
          "OTEL_TRACES_SAMPLER_ARG", "OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER",
          "OTEL_RESOURCE_ATTRIBUTES", "OTEL_EXPORTER_OTLP_COMPRESSION", "OTEL_EXPORTER_OTLP_LOGS_COMPRESSION",
          "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
          "OTEL_EXPORTER_OTLP_CERTIFICATE", "OTEL_EXPORTER_OTLP_LOGS_CERTIFICATE"}) {
      unsetenv(name);
    }
  }
  static Options Resolve(const v1::OtelConfig& config) {
    absl::StatusOr<Options> options = ResolveOptions(config, "daemon");
    EXPECT_TRUE(options.ok()) << options.status();
    return options.ok() ? *options : Options();
  }
};

TEST_F(OptionsTest, EmptyConfig_IsOffWithAllSignalsReady) {
  const Options options = Resolve({});
  EXPECT_FALSE(options.enabled);
  EXPECT_EQ(options.bridge.exporter, ExporterKind::kOtlpGrpc);
  EXPECT_EQ(options.bridge.endpoint, "");
  EXPECT_EQ(options.bridge.sampler, SamplerKind::kParentRatio);
  EXPECT_EQ(options.bridge.sampling_ratio, 1.0);
  EXPECT_EQ(options.bridge.timeout, std::chrono::seconds(3));
  EXPECT_TRUE(options.bridge.traces && options.bridge.metrics && options.bridge.logs);
  EXPECT_THAT(options.bridge.resource, Contains(Pair("service.name", "tensorcast-daemon")));
  EXPECT_THAT(options.bridge.resource, Contains(Pair("tc.role", "daemon")));
  EXPECT_THAT(options.bridge.resource, Contains(Pair("service.version", HasSubstr("."))));
}

TEST_F(OptionsTest, ConfiguredValues_AreUsed) {
  const Options options = Resolve(OtelConfig(
      "enabled: true service_name: 'mine' resource_attributes: 'team=infra' resource_attributes: 'note=a=b' "
      "exporter: 'otlp_http' endpoint: 'https://collector:4318/base' headers: 'authorization=Bearer x' tls { "
      "insecure_skip_verify: true } timeout: '250ms' retry_for: '20s' compression: 'none' sampler: "
      "'always_on' sampling_ratio: 0.25 max_span_events: 3 traces: false queue_size: 100 batch_interval: "
      "'2s' shutdown_timeout: '1s' log_level: 'error' all_attributes: true"));
  EXPECT_TRUE(options.enabled);
  EXPECT_EQ(options.bridge.exporter, ExporterKind::kOtlpHttp);
  EXPECT_EQ(options.bridge.endpoint, "https://collector:4318/base");
  EXPECT_THAT(options.bridge.headers, Contains(Pair("authorization", "Bearer x")));
  EXPECT_EQ(options.bridge.timeout, std::chrono::milliseconds(250));
  EXPECT_EQ(options.bridge.retry_for, std::chrono::seconds(20));
  EXPECT_EQ(options.bridge.compression, "none");
  EXPECT_EQ(Resolve(OtelConfig("compression: 'gzip'")).bridge.compression, "gzip");
  EXPECT_EQ(options.bridge.sampler, SamplerKind::kAlwaysOn);
  EXPECT_EQ(options.bridge.sampling_ratio, 0.25);
  EXPECT_EQ(options.bridge.limits.max_events, 3u);
  EXPECT_FALSE(options.bridge.traces);
  EXPECT_EQ(options.bridge.queue_size, 100u);
  EXPECT_EQ(options.bridge.batch_size, 100u) << "the default batch shrinks with the queue";
  EXPECT_EQ(options.bridge.batch_interval, std::chrono::seconds(2));
  EXPECT_EQ(options.shutdown_timeout, absl::Seconds(1));
  EXPECT_EQ(options.log_level, absl::LogSeverity::kError);
  EXPECT_TRUE(options.all_attributes);
  EXPECT_THAT(options.bridge.resource, Contains(Pair("team", "infra")));
  EXPECT_THAT(options.bridge.resource, Contains(Pair("note", "a=b")));
}

TEST_F(OptionsTest, ConfigurationDefaults_EqualOptionDefaults) {
  const Options declared = Resolve(config::Defaults().observability().otel());
  const Options initial = Resolve({});
  EXPECT_EQ(declared.enabled, initial.enabled);
  EXPECT_EQ(declared.shutdown_timeout, initial.shutdown_timeout);
  EXPECT_EQ(declared.log_level, initial.log_level);
  EXPECT_EQ(declared.all_attributes, initial.all_attributes);
  EXPECT_EQ(declared.resource_metrics, initial.resource_metrics);
  const BridgeOptions& bridge = declared.bridge;
  EXPECT_EQ(bridge.exporter, initial.bridge.exporter);
  EXPECT_EQ(bridge.timeout, initial.bridge.timeout);
  EXPECT_EQ(bridge.retry_for, initial.bridge.retry_for);
  EXPECT_EQ(bridge.sampler, initial.bridge.sampler);
  EXPECT_EQ(bridge.sampling_ratio, initial.bridge.sampling_ratio);
  EXPECT_EQ(bridge.limits.max_attributes, initial.bridge.limits.max_attributes);
  EXPECT_EQ(bridge.limits.max_events, initial.bridge.limits.max_events);
  EXPECT_EQ(bridge.limits.max_links, initial.bridge.limits.max_links);
  EXPECT_EQ(bridge.limits.max_attribute_bytes, initial.bridge.limits.max_attribute_bytes);
  EXPECT_EQ(bridge.queue_size, initial.bridge.queue_size);
  EXPECT_EQ(bridge.batch_size, initial.bridge.batch_size);
  EXPECT_EQ(bridge.batch_interval, initial.bridge.batch_interval);
  EXPECT_EQ(bridge.metric_interval, initial.bridge.metric_interval);
}

TEST_F(OptionsTest, Endpoint_ComesFromConfigThenVariableThenSdk) {
  setenv("TENSORCAST_OTLP_ENDPOINT", "from-environment:1", 1);
  EXPECT_EQ(Resolve(OtelConfig("endpoint: 'from-config:2'")).bridge.endpoint, "http://from-config:2");
  EXPECT_EQ(Resolve({}).bridge.endpoint, "http://from-environment:1");
  unsetenv("TENSORCAST_OTLP_ENDPOINT");
  EXPECT_EQ(Resolve({}).bridge.endpoint, "") << "the SDK then reads OTEL_EXPORTER_OTLP_* itself";
}

TEST_F(OptionsTest, DebugVariable_EnablesConsoleExporter) {
  setenv("TENSORCAST_OTEL_DEBUG", "1", 1);
  const Options options = Resolve({});
  EXPECT_TRUE(options.enabled);
  EXPECT_EQ(options.bridge.exporter, ExporterKind::kConsole);
}

TEST_F(OptionsTest, Configuration_OverridesStandardVariables) {
  setenv("OTEL_SERVICE_NAME", "from-environment", 1);
  setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", 1);
  setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "7", 1);
  EXPECT_THAT(Resolve({}).bridge.resource, Contains(Pair("service.name", "from-environment")));
  EXPECT_EQ(Resolve({}).bridge.exporter, ExporterKind::kOtlpHttp);
  EXPECT_EQ(Resolve({}).bridge.timeout.count(), 0) << "left to the SDK, which reads the variable";
  EXPECT_EQ(Resolve(OtelConfig("exporter: 'otlp_grpc'")).bridge.exporter, ExporterKind::kOtlpGrpc);
  setenv("OTEL_SDK_DISABLED", "true", 1);
  EXPECT_FALSE(Resolve(OtelConfig("enabled: true")).enabled);
}

TEST_F(OptionsTest, ResourceVariable_OverridesDefaultResource) {
  setenv("OTEL_RESOURCE_ATTRIBUTES", "service.version=9.9, service.name=theirs,team=infra", 1);
  const auto resource = Resolve({}).bridge.resource;
  EXPECT_THAT(resource, Not(Contains(Pair("service.version", _))));
  EXPECT_THAT(resource, Not(Contains(Pair("service.name", _))));
  EXPECT_THAT(resource, Contains(Pair("tc.role", "daemon")));
  EXPECT_THAT(Resolve(OtelConfig("service_name: 'mine'")).bridge.resource,
              Contains(Pair("service.name", "mine")));
}

TEST_F(OptionsTest, ResourceOfServer_StandsBelowEnvironment) {
  const ResourceAttributes server = {{"service.instance.id", "node-1"}, {"tc.zone", "a"}};
  const auto resolve = [&] { return sdk::ResolveOptions({}, "daemon", server)->bridge.resource; };
  EXPECT_THAT(resolve(), Contains(Pair("service.instance.id", "node-1")));
  EXPECT_THAT(resolve(), Contains(Pair("tc.zone", "a")));
  setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=theirs", 1);
  EXPECT_THAT(resolve(), Not(Contains(Pair("service.instance.id", _))));
}

TEST_F(OptionsTest, SamplerVariable_SelectsStandardSampler) {
  struct Case {
    const char* name;
    SamplerKind kind;
    double ratio;
  };
  setenv("OTEL_TRACES_SAMPLER_ARG", "0.25", 1);
  for (const Case& expected : {Case{"always_on", SamplerKind::kAlwaysOn, 1.0},
                               {"always_off", SamplerKind::kAlwaysOff, 0.0},
                               {"traceidratio", SamplerKind::kRatio, 0.25},
                               {"parentbased_always_on", SamplerKind::kParentRatio, 1.0},
                               {"parentbased_always_off", SamplerKind::kParentRatio, 0.0},
                               {"parentbased_traceidratio", SamplerKind::kParentRatio, 0.25}}) {
    setenv("OTEL_TRACES_SAMPLER", expected.name, 1);
    const BridgeOptions bridge = Resolve(OtelConfig("enabled: true")).bridge;
    EXPECT_EQ(bridge.sampler, expected.kind) << expected.name;
    EXPECT_EQ(bridge.sampling_ratio, expected.ratio) << expected.name;
  }
  EXPECT_EQ(Resolve(OtelConfig("enabled: true sampling_ratio: 0.5")).bridge.sampling_ratio, 0.5)
      << "the configuration stands above";
  EXPECT_EQ(Resolve(OtelConfig("enabled: true sampler: 'ratio'")).bridge.sampling_ratio, 1.0);
  setenv("OTEL_TRACES_SAMPLER_ARG", "often", 1);
  EXPECT_THAT(std::string(ResolveOptions(OtelConfig("enabled: true"), "daemon").status().message()),
              HasSubstr("OTEL_TRACES_SAMPLER_ARG"));
  setenv("OTEL_TRACES_SAMPLER", "xray", 1);
  EXPECT_THAT(std::string(ResolveOptions(OtelConfig("enabled: true"), "daemon").status().message()),
              HasSubstr("OTEL_TRACES_SAMPLER"));
  EXPECT_TRUE(ResolveOptions({}, "daemon").ok()) << "meant for others, as telemetry is off";
}

TEST_F(OptionsTest, ExporterVariable_AppliesPerSignal) {
  setenv("OTEL_TRACES_EXPORTER", "none", 1);
  setenv("OTEL_METRICS_EXPORTER", "console", 1);
  setenv("OTEL_LOGS_EXPORTER", "otlp", 1);
  const BridgeOptions bridge = Resolve(OtelConfig("enabled: true")).bridge;
  EXPECT_FALSE(bridge.traces);
  EXPECT_TRUE(bridge.metrics && bridge.logs);
  EXPECT_EQ(bridge.ExporterOf(Signal::kMetrics), ExporterKind::kConsole);
  EXPECT_EQ(bridge.ExporterOf(Signal::kLogs), ExporterKind::kOtlpGrpc);
  EXPECT_EQ(Resolve(OtelConfig("enabled: true exporter: 'otlp_grpc'")).bridge.ExporterOf(Signal::kMetrics),
            ExporterKind::kOtlpGrpc)
      << "the configuration stands above";
  setenv("OTEL_TRACES_EXPORTER", "zipkin", 1);
  EXPECT_THAT(std::string(ResolveOptions(OtelConfig("enabled: true"), "daemon").status().message()),
              HasSubstr("OTEL_TRACES_EXPORTER"));
}

TEST_F(OptionsTest, ExporterVariableNone_SwitchesSignalOff) {
  struct Case {
    const char* variable;
    const char* key;
    bool BridgeOptions::* signal;
  };
  for (const Case& one : {Case{"OTEL_TRACES_EXPORTER", "traces", &BridgeOptions::traces},
                          Case{"OTEL_METRICS_EXPORTER", "metrics", &BridgeOptions::metrics},
                          Case{"OTEL_LOGS_EXPORTER", "logs", &BridgeOptions::logs}}) {
    SCOPED_TRACE(one.variable);
    setenv(one.variable, "none", 1);
    for (const char* exporter : {"", "otlp_grpc", "otlp_http", "jaeger", "console"}) {
      SCOPED_TRACE(exporter);
      const std::string text = absl::StrCat("enabled: true exporter: '", exporter, "'");
      const BridgeOptions bridge = Resolve(OtelConfig(text)).bridge;
      EXPECT_FALSE(bridge.*one.signal);
      EXPECT_EQ(bridge.traces + bridge.metrics + bridge.logs, 2) << "the other two go on";
      EXPECT_TRUE(Resolve(OtelConfig(absl::StrCat(text, " ", one.key, ": true"))).bridge.*one.signal);
    }
    setenv(one.variable, "otlp", 1);
    EXPECT_TRUE(Resolve(OtelConfig("enabled: true exporter: 'otlp_grpc'")).bridge.*one.signal);
    EXPECT_FALSE(Resolve(OtelConfig(absl::StrCat("enabled: true ", one.key, ": false"))).bridge.*one.signal);
    unsetenv(one.variable);
  }
}

TEST_F(OptionsTest, Port4318_MeansHttpWhenNoProtocolIsSet) {
  const auto exporter_of = [](const std::string& text) { return Resolve(OtelConfig(text)).bridge.exporter; };
  for (const char* endpoint :
       {"http://host:4318", "https://host:4318/base", "host:4318", "http://[::1]:4318/"}) {
    EXPECT_EQ(exporter_of(absl::StrCat("enabled: true endpoint: '", endpoint, "'")), ExporterKind::kOtlpHttp)
        << endpoint;
  }
  for (const char* endpoint : {"http://host:4317", "http://host:43180", "http://host:1/4318:4318"}) {
    EXPECT_EQ(exporter_of(absl::StrCat("enabled: true endpoint: '", endpoint, "'")), ExporterKind::kOtlpGrpc)
        << endpoint;
  }
  EXPECT_EQ(exporter_of("enabled: true endpoint: 'host:4318' exporter: 'otlp_grpc'"),
            ExporterKind::kOtlpGrpc);
  EXPECT_EQ(exporter_of("enabled: true endpoint: 'host:4318' exporter: 'console'"), ExporterKind::kConsole);
  for (const char* variable :
       {"TENSORCAST_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"}) {
    setenv(variable, "http://host:4318", 1);
    EXPECT_EQ(exporter_of("enabled: true"), ExporterKind::kOtlpHttp) << variable;
    EXPECT_EQ(exporter_of("enabled: true endpoint: 'host:4317'"), ExporterKind::kOtlpGrpc) << variable;
    unsetenv(variable);
  }
  setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", 1);
  EXPECT_EQ(exporter_of("enabled: true endpoint: 'host:4318'"), ExporterKind::kOtlpGrpc);
  setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", 1);
  EXPECT_THAT(std::string(ResolveOptions(OtelConfig("enabled: true"), "daemon").status().message()),
              HasSubstr("OTEL_EXPORTER_OTLP_PROTOCOL"));
  EXPECT_TRUE(ResolveOptions({}, "daemon").ok()) << "meant for others, as telemetry is off";
}

TEST_F(OptionsTest, CompressionOverHttp_IsRefusedFromConfigAndVariables) {
  v1::OtelConfig config = OtelConfig("enabled: true exporter: 'otlp_http' compression: 'gzip'");
  EXPECT_EQ(ResolveOptions(config, "daemon").status().code(), absl::StatusCode::kInvalidArgument);
  config.clear_compression();
  for (const char* variable : {"OTEL_EXPORTER_OTLP_COMPRESSION", "OTEL_EXPORTER_OTLP_LOGS_COMPRESSION"}) {
    setenv(variable, "gzip", 1);
    EXPECT_THAT(std::string(ResolveOptions(config, "daemon").status().message()), HasSubstr(variable));
    unsetenv(variable);
  }
  EXPECT_TRUE(ResolveOptions(config, "daemon").ok());
}

TEST_F(OptionsTest, UnreadableAuthorities_AreNamedWithTheirVariable) {
  const v1::OtelConfig config = OtelConfig("enabled: true endpoint: 'https://collector:4317'");
  for (const char* variable : {"OTEL_EXPORTER_OTLP_CERTIFICATE", "OTEL_EXPORTER_OTLP_LOGS_CERTIFICATE"}) {
    setenv(variable, "/nowhere/ca.pem", 1);
    const absl::Status status = ResolveOptions(config, "daemon").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                ::testing::AllOf(HasSubstr(variable), HasSubstr("/nowhere/ca.pem")));
    EXPECT_TRUE(ResolveOptions(OtelConfig("enabled: true endpoint: 'http://collector:4317'"), "daemon").ok());
    setenv(variable, "/proc/self/stat", 1);  // can be read
    EXPECT_TRUE(ResolveOptions(config, "daemon").ok());
    unsetenv(variable);
  }
}

TEST_F(OptionsTest, ExporterJaeger_IsOtlpGrpcAndNoneIsOff) {
  EXPECT_EQ(Resolve(OtelConfig("exporter: 'jaeger'")).bridge.exporter, ExporterKind::kOtlpGrpc);
  EXPECT_FALSE(Resolve(OtelConfig("enabled: true exporter: 'none'")).enabled);
}

TEST_F(OptionsTest, WrongValue_ErrorNamesItsKey) {
  const std::multimap<std::string, v1::OtelConfig> wrong = {
      {"exporter", OtelConfig("exporter: 'zipkin'")},
      {"endpoint", OtelConfig("endpoint: 'ftp://collector:1'")},
      {"endpoint", OtelConfig("endpoint: 'collector'")},
      {"headers", OtelConfig("headers: 'novalue'")},
      {"resource_attributes", OtelConfig("resource_attributes: '=x'")},
      {"tls.ca_file", OtelConfig("tls { ca_file: '/nonexistent' }")},
      {"tls.key_file: no file is given, and tls.cert_file is \"/dev/null\"",
       OtelConfig("exporter: 'otlp_http' tls { cert_file: '/dev/null' }")},
      {"tls.cert_file: no file is given, and tls.key_file is \"/dev/null\"",
       OtelConfig("exporter: 'otlp_http' tls { key_file: '/dev/null' }")},
      {"exporter", OtelConfig("exporter: 'otlp_grpc' tls { insecure_skip_verify: true }")},
      {"timeout", OtelConfig("timeout: 'soon'")},
      {"timeout", OtelConfig("timeout: '-1s'")},
      {"compression", OtelConfig("compression: 'lzma'")},
      {"sampler", OtelConfig("sampler: 'sometimes'")},
      {"sampling_ratio", OtelConfig("sampling_ratio: 1.5")},
      {"sampling_ratio", OtelConfig("sampling_ratio: -0.1")},
      {"max_span_events", OtelConfig("max_span_events: -1")},
      {"queue_size", OtelConfig("queue_size: -5")},
      {"batch_size", OtelConfig("queue_size: 10 batch_size: 11")},
      {"metric_interval", OtelConfig("metric_interval: '1ms'")},
      {"log_level", OtelConfig("log_level: 'chatty'")},
  };
  for (const auto& [key, config] : wrong) {
    const absl::Status status = ResolveOptions(config, "daemon").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << key;
    EXPECT_THAT(std::string(status.message()), HasSubstr("observability.otel." + key));
  }
  setenv("TENSORCAST_OTLP_ENDPOINT", "nonsense", 1);
  EXPECT_THAT(std::string(ResolveOptions({}, "daemon").status().message()),
              HasSubstr("TENSORCAST_OTLP_ENDPOINT"));
}

}  // namespace
}  // namespace tensorcast::otel::sdk::options_test
