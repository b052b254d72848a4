// What leaves the real processes for a collector, and that a wrong setting is an error at start.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "otel/sdk/testing/http_collector.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

class Telemetry : public E2eTest {};

// The names of the spans in a trace file; empty when it is not one.
std::set<std::string> SpansIn(const std::string& path) {
  std::ifstream file(path);
  const nlohmann::json events = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  std::set<std::string> names;
  if (!events.is_array()) return names;
  for (const nlohmann::json& event : events) {
    // Complete events, and pairs of a beginning and an end.
    const std::string phase = event.value("ph", "");
    if ((phase == "X" && event.contains("dur")) || phase == "e") names.insert(event.value("name", ""));
  }
  return names;
}

TEST_F(Telemetry, OtelSmoke_FindsCoherentTracesMetricsAndLogs) {
  const CommandResult smoke = RunCommand({"otel-smoke"});
  EXPECT_EQ(smoke.exit_code, 0) << smoke.output;
  EXPECT_THAT(smoke.output, HasSubstr("coherent"));
  EXPECT_THAT(smoke.output, HasSubstr("~> linked to P2P/Pull"));
  EXPECT_THAT(smoke.output,
              AllOf(HasSubstr("tc_disk_read_bytes_total"), HasSubstr("tc_disk_written_bytes_total"),
                    HasSubstr("kind=client,location=cpu")));
}

// A port of its own for each process that runs this test: the whole of 127.0.0.0/8 is this host.
std::string OwnLoopbackAddress() {
  const int id = getpid();
  return absl::StrCat("127.", 100 + (id >> 16 & 127), ".", id >> 8 & 255, ".", id & 255);
}

TEST_F(Telemetry, OtelSmokeToPort4318_SendsOverHttp) {
  otel::testing::HttpCollector collector({"200 OK"}, OwnLoopbackAddress(), 4318);
  const CommandResult smoke = RunCommand({"otel-smoke", "--endpoint", collector.endpoint()});
  EXPECT_EQ(smoke.exit_code, 0) << smoke.output;
  for (const char* path : {"/v1/traces", "/v1/metrics", "/v1/logs"}) {
    EXPECT_GE(collector.count(path), 4u) << path << " of four processes";
  }
}

TEST_F(Telemetry, OtelSmokeWithWrongProtocol_NamesTheSetting) {
  otel::testing::HttpCollector collector({"200 OK"});
  const CommandResult wrong = RunCommand({"otel-smoke", "--endpoint", collector.endpoint()});
  EXPECT_EQ(wrong.exit_code, 1) << wrong.output;
  EXPECT_THAT(wrong.output, AllOf(HasSubstr("did not take the traces"),
                                  HasSubstr("set observability.otel.exporter to otlp_http")));
  const CommandResult right = RunCommand(
      {"otel-smoke", "--endpoint", collector.endpoint(), "--set", "observability.otel.exporter=otlp_http"});
  EXPECT_EQ(right.exit_code, 0) << right.output;
}

TEST_F(Telemetry, WrongOtelSetting_StartFailsAndNamesKey) {
  const std::pair<std::string, std::string> wrong[] = {{"exporter", "carrier_pigeon"},
                                                       {"endpoint", "collector without a port"},
                                                       {"sampler", "sometimes"},
                                                       {"sampling_ratio", "1.5"},
                                                       {"timeout", "soon"},
                                                       {"compression", "zip"},
                                                       {"queue_size", "-1"},
                                                       {"batch_interval", "often"},
                                                       {"metric_interval", "0s"},
                                                       {"log_level", "loud"},
                                                       {"headers", "no-equals-sign"},
                                                       {"resource_attributes", "none"},
                                                       {"enabled", "perhaps"},
                                                       {"no_such_key", "1"}};
  for (const auto& [key, value] : wrong) {
    for (const char* command : {"status", "daemon", "global-store"}) {
      const CommandResult result = RunCommand({command, "--set", "observability.otel.enabled=true", "--set",
                                               absl::StrCat("observability.otel.", key, "=", value), "--set",
                                               "daemon.state_dir=" + directory_->path(), "--set",
                                               "global_store.metadata_path=" + directory_->path() + "/m.db"});
      EXPECT_EQ(result.exit_code, 1) << command << " " << key << ": " << result.output;
      EXPECT_THAT(result.output, HasSubstr(key)) << command;
    }
  }
}

TEST_F(Telemetry, CommandWithTraceFile_WritesItsSpans) {
  StartCluster();
  const std::string file = directory_->path() + "/trace.json";
  const CommandResult list =
      RunCommand({"status", "--daemon", cluster_->addresses(0).unix_socket, "--trace-file", file});
  ASSERT_EQ(list.exit_code, 0) << list.output;
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  EXPECT_TRUE(nlohmann::json::parse(text.str(), nullptr, /*allow_exceptions=*/false).is_array())
      << text.str();
  EXPECT_THAT(text.str(), HasSubstr("StoreDaemon/GetStatus"));
}

TEST_F(Telemetry, PutGetAndDaemon_WriteValidTraceFiles) {
  ClusterOptions options = DefaultOptions();
  const std::string of_daemon = directory_->path() + "/daemon.json";
  options.settings_of_daemon = {{}, {"observability.trace_file=" + of_daemon}};
  StartCluster(options);
  const std::string of_put = directory_->path() + "/put.json", of_get = directory_->path() + "/get.json";
  const std::string model = MakeModel("model.safetensors", 8 << 20);
  const CommandResult put = RunCommand(
      {"put", model, "--key", "k", "--daemon", cluster_->addresses(0).unix_socket, "--trace-file", of_put});
  ASSERT_EQ(put.exit_code, 0) << put.output;
  const CommandResult get =
      RunCommand({"get", "k", "--daemon", cluster_->addresses(1).unix_socket, "--trace-file", of_get});
  ASSERT_EQ(get.exit_code, 0) << get.output;
  clients_.clear();
  TC_ASSERT_OK(cluster_->Stop());

  EXPECT_THAT(SpansIn(of_put), IsSupersetOf({"Client/Put", "StoreDaemon/ImportArtifact"}));
  EXPECT_THAT(SpansIn(of_get), IsSupersetOf({"Client/Get", "StoreDaemon/MaterializeReplica"}));
  EXPECT_THAT(SpansIn(of_daemon), IsSupersetOf({"StoreDaemon/MaterializeReplica", "StoreEngine/P2PIngest"}));
}

TEST_F(Telemetry, StatusWithDamagedPackedFile_NamesIt) {
  ClusterOptions options = DefaultOptions();
  StartCluster(options);
  const std::string model = MakeModel("model.safetensors", 8 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "k", .durable = true}).status());
  clients_.clear();
  TC_ASSERT_OK(cluster_->Stop());
  cluster_.reset();
  std::string damaged;
  for (const auto& file : std::filesystem::recursive_directory_iterator(directory_->path())) {
    if (file.path().parent_path().filename() != "artifacts" || !file.is_regular_file()) continue;
    damaged = file.path().filename();
    std::filesystem::resize_file(file.path(), 100);
  }
  ASSERT_NE(damaged, "");
  StartCluster(options);
  const CommandResult status = RunCommand({"status", "--daemon", cluster_->addresses(0).unix_socket});
  EXPECT_EQ(status.exit_code, 0) << status.output;
  EXPECT_THAT(status.output, AllOf(HasSubstr("DAMAGED"), HasSubstr(damaged)));
}

TEST_F(Telemetry, HelpOfEveryCommand_ShowsTelemetryFlags) {
  const std::vector<std::vector<std::string>> commands = {{"global-store"},
                                                          {"daemon"},
                                                          {"put"},
                                                          {"get"},
                                                          {"ls"},
                                                          {"rm"},
                                                          {"gc"},
                                                          {"replica", "pin"},
                                                          {"replication", "ls"},
                                                          {"node", "drain"},
                                                          {"status"},
                                                          {"explain"},
                                                          {"top"},
                                                          {"key", "bind"},
                                                          {"key", "resolve"},
                                                          {"key", "ls"},
                                                          {"key", "watch"},
                                                          {"key", "rm"},
                                                          {"bench", "p2p"},
                                                          {"make-model"},
                                                          {"demo"},
                                                          {"otel-smoke"},
                                                          {"config", "check"},
                                                          {"config", "show"}};
  for (std::vector<std::string> command : commands) {
    const std::string name = absl::StrJoin(command, " ");
    command.push_back("--help");
    const CommandResult help = RunCommand(command);
    EXPECT_EQ(help.exit_code, 0) << name;
    EXPECT_THAT(help.output,
                AllOf(HasSubstr("--tracing"), HasSubstr("--otlp-endpoint"), HasSubstr("--trace-file")))
        << name;
  }
}

TEST_F(Telemetry, CollectorAway_PutGetAndStopSucceed) {
  ClusterOptions options = DefaultOptions();
  // Nothing listens on the discard port.
  options.daemon_settings.push_back("observability.otel.enabled=true");
  options.daemon_settings.push_back("observability.otel.endpoint=http://127.0.0.1:9");
  options.daemon_settings.push_back("observability.otel.shutdown_timeout=500ms");
  StartCluster(options);
  const std::string model = MakeModel("model", 8 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "k"}).status());
  TC_ASSERT_OK(client(1).Get(Context(), "k", {}).status());
  clients_.clear();
  TC_ASSERT_OK(cluster_->Stop());
}

}  // namespace
}  // namespace tensorcast
