// Collectors that hang, refuse, die or were never there, seen by real processes: the work goes on as if
// nothing were, the processes end in time, and what was lost is counted where a person looks.
//
// Exports may take an hour here: whatever waited for one would show as a test that does not end.
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/admin.h"
#include "otel/sdk/testing/collector.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

using otel::testing::Behaviour;
using otel::testing::Collector;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int kQueue = 16;
constexpr absl::Duration kStopWithin = absl::Seconds(15);  // of the hour that an export may take

class CollectorTest : public E2eTest {
 protected:
  void StartObserved(const std::string& endpoint, const std::vector<std::string>& more = {}) {
    endpoint_ = endpoint;
    ClusterOptions options = DefaultOptions();
    for (auto* settings : {&options.global_store_settings, &options.daemon_settings}) {
      settings->insert(
          settings->end(),
          {"observability.otel.enabled=true", "observability.otel.endpoint=" + endpoint,
           "observability.otel.timeout=1h", absl::StrCat("observability.otel.queue_size=", kQueue),
           "observability.otel.batch_size=8", "observability.otel.batch_interval=50ms",
           "observability.otel.metric_interval=100ms", "observability.otel.shutdown_timeout=500ms"});
      settings->insert(settings->end(), more.begin(), more.end());
    }
    StartCluster(options);
  }

  void PutAndGet(const std::string& key) {
    const std::string model = MakeModel(key, 8 << 20);
    TC_ASSERT_OK(client(0).Import(Context(), model, {.key = key}).status());
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), key, {.lane = "tcp"}));
    TC_ASSERT_OK(Compare(*replica, model).status());
  }

  // More spans than daemon 0's queue holds. Each is queued, or dropped, before its call returns.
  void OverflowTheQueue() {
    TC_ASSERT_OK_AND_ASSIGN(const auto admin,
                            client::AdminClient::Connect(cluster_->addresses(0).unix_socket));
    for (int i = 0; i < 3 * kQueue; ++i) TC_ASSERT_OK(admin->GetStatus(Context()).status());
  }

  std::string LogOfDaemon0() const {
    std::ifstream log(cluster_->daemon_directory(0) + "/log");
    return {std::istreambuf_iterator<char>(log), {}};
  }

  void ExpectACleanStop() {
    clients_.clear();
    const absl::Status stopped = cluster_->Stop(kStopWithin);
    EXPECT_TRUE(stopped.ok()) << stopped;
  }

  // Whether a process has told of spans lost for that reason.
  static bool HasLost(const Collector& collector, const std::string& reason) {
    for (const auto& metric : collector.metrics()) {
      if (metric.name == "tc_telemetry_dropped_total" && metric.labels.at("signal") == "traces" &&
          metric.labels.at("reason") == reason && metric.value > 0) {
        return true;
      }
    }
    return false;
  }

  std::string endpoint_;
};

TEST_F(CollectorTest, HangingCollector_DelaysNothingAndLossesAreLogged) {
  auto collector = *Collector::Start();
  collector->SetBehaviour(Behaviour::kHang);
  StartObserved(collector->endpoint());
  // Each of the three processes has an export that hangs before there is any work.
  ASSERT_TRUE(collector->WaitFor(kStepTimeout, [&] { return collector->calls() >= 3; }));
  PutAndGet("m");
  OverflowTheQueue();
  EXPECT_THAT(LogOfDaemon0(), AllOf(HasSubstr("telemetry: "), HasSubstr("that the collector is up at")));

  const CommandResult status = RunCommand(
      {"status", "--daemon", cluster_->addresses(0).unix_socket, "--otlp-endpoint", endpoint_, "--set",
       "observability.otel.timeout=1h", "--set", "observability.otel.shutdown_timeout=300ms"});
  EXPECT_EQ(status.exit_code, 0) << status.output;
  EXPECT_THAT(status.output, HasSubstr("node-0"));

  ExpectACleanStop();
  const std::string log = LogOfDaemon0();
  const size_t warning = log.find("telemetry: ");
  EXPECT_EQ(log.find("telemetry: ", warning + 1), log.npos) << "one warning an outage: " << log;
}

TEST_F(CollectorTest, RecoveredCollector_ReceivesCountOfLostItems) {
  auto collector = *Collector::Start();
  collector->SetBehaviour(Behaviour::kHang);
  StartObserved(collector->endpoint());
  ASSERT_TRUE(collector->WaitFor(kStepTimeout, [&] { return collector->calls() >= 3; }));
  OverflowTheQueue();
  collector->SetBehaviour(Behaviour::kAccept);
  EXPECT_TRUE(collector->WaitFor(kStepTimeout, [&] { return HasLost(*collector, "queue_full"); }));
  ExpectACleanStop();
}

TEST_F(CollectorTest, RefusingCollector_LosesBatchesAndNothingElse) {
  auto collector = *Collector::Start();
  collector->SetBehaviour(Behaviour::kRefuse);
  // Nothing but spans, until the metrics at the end.
  StartObserved(collector->endpoint(),
                {"observability.otel.logs=false", "observability.otel.metric_interval=1h",
                 "observability.otel.retry_for=1ms"});
  PutAndGet("m");
  // Of four exports by three processes, one at least is the second of its process: the first has been
  // refused.
  ASSERT_TRUE(collector->WaitFor(kStepTimeout, [&] {
    OverflowTheQueue();
    return collector->calls() >= 4;
  }));
  collector->SetBehaviour(Behaviour::kAccept);
  ExpectACleanStop();
  EXPECT_TRUE(HasLost(*collector, "export_failed"));
}

TEST_F(CollectorTest, CollectorKilled_IsUsedAgainAfterItsRestart) {
  auto collector = *Collector::Start();
  StartObserved(collector->endpoint());
  PutAndGet("before");
  ASSERT_TRUE(collector->WaitFor(kStepTimeout, [&] { return !collector->spans().empty(); }));
  collector.reset();
  PutAndGet("meanwhile");
  collector = *Collector::Start(endpoint_.substr(std::string("http://").size()));
  // The processes connect again in their own time; what is made meanwhile may be lost.
  EXPECT_TRUE(collector->WaitFor(kStepTimeout, [&] {
    OverflowTheQueue();
    return !collector->spans().empty();
  }));
  PutAndGet("after");
  ExpectACleanStop();
}

TEST_F(CollectorTest, CollectorRestarts_QueuedSpansArrive) {
  auto collector = *Collector::Start();
  StartObserved(collector->endpoint(),
                {"observability.otel.queue_size=2048", "observability.otel.batch_size=512",
                 "observability.otel.retry_for=10m"});
  collector.reset();
  PutAndGet("meanwhile");
  collector = *Collector::Start(endpoint_.substr(std::string("http://").size()));
  // From each process one that is its own: the client's end of a call has the same name.
  constexpr int kInternal = 1;
  constexpr int kServer = 2;
  EXPECT_TRUE(collector->WaitFor(kStepTimeout, [&] {
    const auto spans = collector->spans();
    const auto has = [&](std::string_view name, int kind) {
      return std::ranges::any_of(spans,
                                 [&](const auto& span) { return span.name == name && span.kind == kind; });
    };
    return has("StoreDaemon/ImportArtifact", kServer) && has("StoreDaemon/OpenPull", kServer) &&
           has("StoreDaemon/MaterializeReplica", kServer) && has("StoreEngine/P2PIngest", kInternal) &&
           has("GlobalStore/PublishArtifact", kServer);
  })) << "what was made while it was away";
  ExpectACleanStop();
  EXPECT_FALSE(HasLost(*collector, "export_failed"));
}

// What a process sends last, when its parts are gone already, has their gauges still.
TEST_F(CollectorTest, LastExportOfStoppingProcess_HasItsGauges) {
  auto collector = *Collector::Start();
  StartObserved(collector->endpoint(), {"observability.otel.metric_interval=1h"});
  PutAndGet("m");
  ExpectACleanStop();
  const auto metrics = collector->metrics();
  for (const std::string_view name : {"tc_pool_capacity_bytes", "tc_pool_used_bytes", "tc_sessions_active",
                                      "tc_global_store_artifacts", "tc_global_store_nodes"}) {
    EXPECT_TRUE(std::ranges::any_of(metrics, [&](const auto& metric) { return metric.name == name; }))
        << name;
  }
}

// OpenTelemetry's own variables, to a real process.
TEST_F(CollectorTest, StandardOtelVariables_DecideWhatIsSent) {
  auto collector = *Collector::Start();
  StartCluster();
  const auto spans_with = [&](const char* variable, const char* value) {
    const size_t before = collector->spans().size();
    setenv(variable, value, 1);
    const CommandResult status = RunCommand(
        {"status", "--daemon", cluster_->addresses(0).unix_socket, "--otlp-endpoint", collector->endpoint()});
    unsetenv(variable);
    EXPECT_EQ(status.exit_code, 0) << status.output;
    return collector->spans().size() - before;
  };
  EXPECT_GT(spans_with("OTEL_TRACES_SAMPLER", "always_on"), 0);
  EXPECT_EQ(spans_with("OTEL_TRACES_SAMPLER", "always_off"), 0);
  EXPECT_EQ(spans_with("OTEL_TRACES_EXPORTER", "none"), 0);
  EXPECT_TRUE(collector->spans().front().resource.contains("service.version"));
}

// Reports, purges and the load at the start are not traces, unless they fail or take long.
TEST_F(CollectorTest, IdleCluster_SendsNoRootSpansOfUpkeep) {
  auto collector = *Collector::Start();
  StartObserved(collector->endpoint(), {"observability.otel.queue_size=2048"});
  PutAndGet("m");  // changes to report, and a request that has to arrive whole
  ExpectACleanStop();
  bool published = false;
  for (const auto& span : collector->spans()) {
    published |= span.name == "MetadataStore/Put";
    if (!span.parent_span_id.empty() || span.error || span.end - span.start >= absl::Seconds(1)) continue;
    // What is left begins with a call of the test's, or is the drain with which a daemon stops.
    EXPECT_TRUE(span.name.starts_with("StoreDaemon/") || span.name == "StoreEngine/Evict" ||
                span.name == "GlobalStore/DrainNode")
        << span.name;
  }
  EXPECT_TRUE(published) << "work that a request asked for is told";
}

// `none` stands below a signal that the configuration switches on, and above an exporter that it names.
TEST_F(CollectorTest, ExporterVariableNone_SwitchesSignalOffWithExporterSet) {
  auto collector = *Collector::Start();
  StartCluster();
  const auto run = [&](const std::string& set) {
    const CommandResult status =
        RunCommand({"status", "--daemon", cluster_->addresses(0).unix_socket, "--otlp-endpoint",
                    collector->endpoint(), "--set", "observability.otel.exporter=otlp_grpc", "--set", set});
    EXPECT_EQ(status.exit_code, 0) << status.output;
  };
  for (const char* variable : {"OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER"}) {
    setenv(variable, "none", 1);
  }
  run("observability.otel.metric_interval=1h");
  EXPECT_EQ(collector->spans().size(), 0u);
  EXPECT_EQ(collector->metrics().size(), 0u);
  EXPECT_EQ(collector->logs().size(), 0u);
  run("observability.otel.traces=true");
  EXPECT_GT(collector->spans().size(), 0u);
  EXPECT_EQ(collector->metrics().size(), 0u);
  run("observability.otel.metrics=true");
  EXPECT_EQ(collector->metrics().size(), 0u) << "a command sends no metrics";
  for (const char* variable : {"OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER"}) {
    unsetenv(variable);
  }
}

// A command that takes several operations is one trace.
TEST_F(CollectorTest, ManagementCommand_IsOneTrace) {
  auto collector = *Collector::Start();
  StartCluster();
  const std::string model = MakeModel("m", 8 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "k"}).status());
  const std::vector<std::vector<std::string>> commands = {
      {"ls"}, {"status"}, {"gc", "--older-than", "1h"}, {"node", "undrain", "node-0"}, {"rm", "k"}};
  for (std::vector<std::string> command : commands) {
    const std::string root = "Command/" + (command[0] == "node" ? "node undrain" : command[0]);
    command.insert(command.end(), {"--daemon", cluster_->addresses(0).unix_socket, "--otlp-endpoint",
                                   collector->endpoint()});
    const CommandResult result = RunCommand(command);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    std::map<std::string, std::string> trace_of;  // by span's name
    for (const auto& span : collector->spans()) trace_of[span.name] = span.trace_id;
    ASSERT_TRUE(trace_of.contains(root)) << root;
    int operations = 0;
    for (const auto& [name, trace] : trace_of) {
      operations += name.starts_with("Client/") && trace == trace_of[root] ? 1 : 0;
    }
    EXPECT_GT(operations, 0) << root;
  }
}

TEST_F(CollectorTest, SilentCollector_DelaysNothing) {
  // The kernel accepts; no process ever reads.
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 16), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  StartObserved(absl::StrCat("http://127.0.0.1:", ntohs(address.sin_port)));
  PutAndGet("m");
  OverflowTheQueue();
  EXPECT_THAT(LogOfDaemon0(), HasSubstr("items dropped so far"));
  ExpectACleanStop();
  close(listener);
}

}  // namespace
}  // namespace tensorcast
