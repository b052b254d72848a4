// What a start refuses beyond the form of single values. tests/e2e/config_check_e2e_test holds the refusals
// of the check and of real starts equal.
#include "cli/commands/check_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/commands/server_options.h"
#include "cli/config/config.h"

namespace tensorcast::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::Config ConfigWith(std::vector<std::string> sets) {
  const std::string folder = testing::TempDir() + "/check_config_test";
  sets.insert(sets.begin(),
              {"daemon.state_dir=" + folder + "/node", "daemon.host_pool=192MiB",
               "daemon.device_runtime=none", "global_store.listen=unix:" + folder + "/store.sock",
               "global_store.metadata_path=" + folder + "/meta.db"});
  auto config = config::Parse("", "", sets);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : v1::Config();
}

std::string Refused(std::vector<std::string> sets, Roles roles = Roles::kAll) {
  const absl::Status status = CheckConfig(ConfigWith(std::move(sets)), roles);
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(CheckConfig, WhatIsGoodIsTakenForEveryRole) {
  for (const Roles roles : {Roles::kAll, Roles::kDaemon, Roles::kGlobalStore}) {
    EXPECT_EQ(Refused({}, roles), "");
  }
}

TEST(CheckConfig, EachFindingIsALineThatBeginsWithItsKey) {
  const std::string refused =
      Refused({"daemon.handle_groups=no-such-group", "daemon.lanes=[ucx, ucx]", "global_store.node_ttl=1s"});
  EXPECT_THAT(refused, HasSubstr("global_store.node_ttl: \"1s\" is less than two heartbeats (4s)"));
  EXPECT_THAT(refused, HasSubstr("\ndaemon.lanes: \"ucx\" is named twice"));
  EXPECT_THAT(refused, HasSubstr("\ndaemon.handle_groups: \"no-such-group\" is no group here"));
}

TEST(CheckConfig, ARoleIsNotRefusedForTheSectionOfAnother) {
  EXPECT_EQ(Refused({"daemon.handle_groups=no-such-group"}, Roles::kGlobalStore), "");
  EXPECT_EQ(Refused({"global_store.metadata_path=:memory:"}, Roles::kDaemon), "");
  EXPECT_THAT(Refused({"global_store.metadata_path=:memory:"}, Roles::kGlobalStore),
              HasSubstr("global_store.metadata_store: memory"));
}

// A daemon without a global store has one within, whose lifetimes are its own business.
TEST(CheckConfig, ADaemonAloneIsAGlobalStoreToo) {
  EXPECT_THAT(Refused({"global_store.grant_ttl=1s"}, Roles::kDaemon), HasSubstr("global_store.grant_ttl"));
  EXPECT_EQ(
      Refused({"global_store.grant_ttl=1s", "daemon.global_store=unix:/run/store.sock"}, Roles::kDaemon), "");
}

TEST(CheckConfig, AnAddressThatOthersCannotConnectToNeedsOneThatTheyCan) {
  EXPECT_THAT(Refused({"daemon.listen=0.0.0.0:0"}), HasSubstr("set daemon.advertise"));
  EXPECT_EQ(Refused({"daemon.listen=0.0.0.0:0", "daemon.advertise=127.0.0.1:0"}), "");
  EXPECT_THAT(Refused({"daemon.advertise=127.0.0.1:7001"}), HasSubstr("nothing listens: set daemon.listen"));
}

TEST(CheckConfig, ThePoolHoldsTheDaemonsOwnBuffers) {
  EXPECT_THAT(Refused({"daemon.host_pool=64MiB"}), HasSubstr("daemon.host_pool: \"64MiB\" is less than"));
  EXPECT_EQ(Refused({"daemon.host_pool=64MiB", "daemon.staging_buffers=1"}), "");
}

TEST(CheckConfig, TelemetryIsCheckedByWhatUsesIt) {
  EXPECT_THAT(Refused({"observability.otel.endpoint=foo"}),
              HasSubstr("observability.otel.endpoint: \"foo\""));
  EXPECT_THAT(Refused({"observability.trace_file=/no/such/folder/t.json"}), HasSubstr("make it first"));
}

TEST(ServerOptions, TheGlobalStoreIsGivenWhatIsConfigured) {
  const auto options =
      ToGlobalStoreOptions(ConfigWith({"global_store.node_ttl=1m30s", "global_store.metadata_store=memory",
                                       "global_store.max_connections=7"})
                               .global_store());
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->node_ttl, absl::Seconds(90));
  EXPECT_EQ(options->heartbeat_interval, absl::Seconds(2));
  EXPECT_EQ(options->metadata_store, "memory");
  EXPECT_EQ(options->max_connections, 7);
}

}  // namespace
}  // namespace tensorcast::cli
