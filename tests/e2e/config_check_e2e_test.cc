// `config check` and a start refuse the same configurations, and say so by the name of the key.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/steady_time.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

using ::testing::HasSubstr;
using Settings = std::vector<std::string>;

class ConfigCheck : public E2eTest {
 protected:
  // What would do, but for what a test puts over it.
  Settings Good() const {
    const std::string folder = directory_->path();
    return {"daemon.state_dir=" + folder + "/node", "daemon.host_pool=192MiB", "daemon.device_runtime=none",
            "global_store.metadata_path=" + folder + "/store/meta.db",
            "global_store.listen=unix:" + folder + "/store.sock"};
  }
  std::vector<std::string> Arguments(std::vector<std::string> command, const Settings& settings) const {
    for (const Settings& some : {Good(), settings}) {
      for (const std::string& setting : some) {
        command.push_back("--set");
        command.push_back(setting);
      }
    }
    return command;
  }
  static std::string RoleOf(const std::string& key) {
    return key.starts_with("global_store.") ? "global-store" : "daemon";
  }
};

TEST_F(ConfigCheck, InvalidSetting_CheckAndStartNameTheSameKey) {
  const std::string folder = directory_->path();
  // Like /tmp: others may write to it, and they did.
  const std::string open_folder = folder + "/open";
  std::filesystem::create_directory(open_folder);
  std::filesystem::permissions(open_folder, std::filesystem::perms::all | std::filesystem::perms::sticky_bit);
  std::ofstream(open_folder + "/theirs").close();
  // The first setting's key is the one that must be named.
  const std::vector<Settings> wrong = {
      {"daemon.host_pool=0"},
      {"daemon.host_pool=64MiB"},
      {"daemon.host_pool=1000TiB"},
      {"daemon.listen=foo"},
      {"daemon.listen=127.0.0.1:99999"},
      {"daemon.listen=203.0.113.1:7001"},
      {"daemon.listen=0.0.0.0:0"},
      {"daemon.listen=0.0.0.0:0", "daemon.advertise=127.0.0.1:0"},  // and no word about security
      {"daemon.listen=127.0.0.1:0"},                                // every local user would reach it
      {"daemon.tcp_listen=127.0.0.1:0"},
      {"daemon.listen=[::]:0"},
      {"daemon.listen=", "daemon.global_store=127.0.0.1:7000"},
      {"daemon.listen=127.0.0.1:0", "daemon.global_store=203.0.113.1:7000"},
      {"daemon.advertise=127.0.0.1:7001"},
      {"daemon.lanes=[ucx, ucx]"},
      {"daemon.lanes=[loopback]"},
      {"daemon.ucx_listen=foo"},
      {"daemon.ucx_listen=0.0.0.0:0"},
      {"daemon.ucx_listen=127.0.0.1:0"},  // no RDMA device or, where there is one, no word about trust
      {"daemon.tcp_listen=203.0.113.1:7002"},
      {"daemon.tcp_listen=0.0.0.0:0"},
      {"daemon.fake_devices=0", "daemon.device_runtime=fake"},
      {"daemon.fake_devices=65", "daemon.device_runtime=fake"},
      {"daemon.fake_device_memory=0", "daemon.device_runtime=fake"},
      {"daemon.device_runtime="},
      {"daemon.state_dir="},
      {"daemon.state_dir=/etc/passwd/state"},
      {"daemon.state_dir=" + folder + "/" + std::string(100, 'x')},
      {"daemon.state_dir=" + open_folder},
      {"daemon.disk_dir=/etc/passwd"},
      {"daemon.disk_dir=" + open_folder},
      {"daemon.unix_socket=/etc/passwd"},
      {"daemon.unix_socket=/etc/passwd/daemon.sock"},
      {"daemon.handle_socket=" + folder + "/x.sock", "daemon.unix_socket=" + folder + "/x.sock"},
      {"daemon.handle_groups=[no-such-group]"},
      {"daemon.import_roots=[/no/such/folder]"},
      {"daemon.import_roots=[relative]"},
      {"daemon.origins=[/a/folder]"},
      {"daemon.origins=['s3://bucket/models/../secret/']"},
      {"daemon.global_store=foo"},
      {"daemon.peer_timeout=0"},
      {"daemon.peer_timeout="},
      {"daemon.staging_buffers=0"},
      {"daemon.name=\xff"},
      {"global_store.listen=foo"},
      {"global_store.listen=127.0.0.1:99999"},
      {"global_store.listen=unix:/etc/passwd"},
      {"global_store.listen=0.0.0.0:0"},
      {"global_store.listen=127.0.0.1:0"},
      {"global_store.node_ttl=1s"},
      {"global_store.grant_ttl=1s"},
      {"global_store.heartbeat_interval=0"},
      {"global_store.metadata_path=:memory:"},
      {"global_store.metadata_path=" + folder},
      {"global_store.metadata_path=" + open_folder + "/x.db"},
      {"global_store.keep_versions_by_prefix=llama/=x"},
      {"global_store.etcd.endpoints=", "global_store.metadata_store=etcd"},
      {"global_store.etcd.password_file=/no/such/file", "global_store.metadata_store=etcd",
       "global_store.etcd.endpoints=127.0.0.1:1"},
      {"daemon.keep_pool=keeper", "daemon.ucx_listen=127.0.0.1:0"},
      {"daemon.labels=zone=a b"},
      {"daemon.nccl=/no/such/library"},
      {"security.denied=/no/such/file"},
      {"security.keys=prod/=client/release"},
      {"log.level="},
      {"observability.otel.sampling_ratio=2"},
      {"observability.otel.endpoint=foo"},
      {"observability.otel.batch_interval=2d"},
      {"observability.otel.tls.ca_file=/no/such/file"},
      {"observability.trace_file=/no/such/folder/trace.json"},
  };
  for (const Settings& settings : wrong) {
    const std::string key = settings[0].substr(0, settings[0].find('='));
    const CommandResult check = RunCommand(Arguments({"config", "check"}, settings));
    EXPECT_EQ(check.exit_code, 1) << settings[0] << ": " << check.output;
    EXPECT_THAT(check.output, HasSubstr(key));
    const CommandResult start = RunCommand(Arguments({RoleOf(key)}, settings));
    EXPECT_EQ(start.exit_code, 1) << settings[0] << ": " << start.output;
    EXPECT_THAT(start.output, HasSubstr(key));
  }
}

TEST_F(ConfigCheck, SettingAcceptedByCheck_ServerStarts) {
  setenv("TENSORCAST_TEST_UCX_OVER_TCP", "1", 1);  // for daemon.ucx_listen: this host may have no RDMA device
  const std::vector<Settings> good = {
      {},
      {"daemon.host_pool=144MiB"},
      {"daemon.disk_dir=" + directory_->path() + "/node"},
      {"daemon.unix_socket=" + directory_->path() + "/run/tensorcast/daemon.sock"},
      {"daemon.listen=0.0.0.0:0", "daemon.advertise=127.0.0.1:0", "daemon.tcp_listen=127.0.0.1:0",
       "security.insecure=true"},
      {"daemon.ucx_listen=127.0.0.1:0", "security.trusted_fabric=true", "security.insecure=true"},
      {"observability.otel.batch_interval=1d"},
      {"global_store.metadata_store=memory"},
      {"global_store.listen=127.0.0.1:0", "security.insecure=true"},
  };
  for (const Settings& settings : good) {
    const std::string key = settings.empty() ? "" : settings[0].substr(0, settings[0].find('='));
    const CommandResult check = RunCommand(Arguments({"config", "check"}, settings));
    EXPECT_EQ(check.exit_code, 0) << check.output;
    std::vector<std::string> argv = Arguments({RoleOf(key)}, settings);
    argv.insert(argv.begin(), DefaultOptions().binary);
    TC_ASSERT_OK_AND_ASSIGN(const auto server, Process::Start({.argv = std::move(argv),
                                                               .log_path = directory_->path() + "/log",
                                                               .ready_pipe = true}));
    TC_ASSERT_OK(server->WaitReady(SteadyNow() + kStepTimeout).status());
    EXPECT_EQ(server->Stop(kStepTimeout).value_or(-1), 0);
  }
}

// A start needs it twice, for its telemetry and for itself, and a pipe is read only once.
TEST_F(ConfigCheck, ConfigurationFromPipe_IsUsedByStart) {
  const std::string log = directory_->path() + "/piped.log";
  std::vector<std::string> argv = {
      "/bin/sh", "-c", "printf 'global_store:\\n  node_ttl: 1s\\n' | \"$0\" \"$@\"", DefaultOptions().binary};
  for (std::string& argument : Arguments({"global-store", "--config", "/dev/stdin"}, {})) {
    argv.push_back(std::move(argument));
  }
  TC_ASSERT_OK_AND_ASSIGN(const auto start, Process::Start({.argv = std::move(argv), .log_path = log}));
  EXPECT_EQ(start->Wait(SteadyNow() + kStepTimeout).value_or(-1), 1);
  std::stringstream said;
  said << std::ifstream(log).rdbuf();
  EXPECT_THAT(said.str(), HasSubstr("global_store.node_ttl: \"1s\""));
}

TEST_F(ConfigCheck, CheckWithRole_ChecksOnlySettingsOfThatRole) {
  const Settings elsewhere = {"daemon.listen=203.0.113.1:7001"};
  EXPECT_EQ(RunCommand(Arguments({"config", "check", "--role", "global-store"}, elsewhere)).exit_code, 0);
  EXPECT_EQ(RunCommand(Arguments({"config", "check", "--role", "daemon"}, elsewhere)).exit_code, 1);
}

TEST_F(ConfigCheck, SeveralFindings_ArePrintedOnePerLine) {
  const CommandResult check = RunCommand(
      Arguments({"config", "check"}, {"daemon.handle_groups=[no-such-group]", "global_store.node_ttl=1s"}));
  EXPECT_THAT(check.output, HasSubstr("\ndaemon.handle_groups: \"no-such-group\""));
  EXPECT_THAT(check.output, HasSubstr("global_store.node_ttl: \"1s\""));
}

}  // namespace
}  // namespace tensorcast
