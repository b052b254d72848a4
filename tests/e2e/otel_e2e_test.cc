// What leaves the real processes for a collector, and that a wrong setting is an error at start.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

using ::testing::HasSubstr;

class Telemetry : public E2eTest {};

TEST_F(Telemetry, OtelSmokeFindsCoherentTracesMetricsAndLogs) {
  const CommandResult smoke = RunCommand({"otel-smoke"});
  EXPECT_EQ(smoke.exit_code, 0) << smoke.output;
  EXPECT_THAT(smoke.output, HasSubstr("coherent"));
  EXPECT_THAT(smoke.output, HasSubstr("~> linked to span"));
}

TEST_F(Telemetry, AWrongSettingIsAnErrorThatNamesItsKey) {
  const CommandResult status = RunCommand({"status", "--set", "observability.otel.enabled=true", "--set",
                                           "observability.otel.exporter=carrier_pigeon"});
  EXPECT_EQ(status.exit_code, 1);
  EXPECT_THAT(status.output, HasSubstr("observability.otel.exporter"));
}

TEST_F(Telemetry, ACommandWritesItsSpansToATraceFile) {
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

TEST_F(Telemetry, ADeadCollectorDoesNotGetInTheWay) {
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
