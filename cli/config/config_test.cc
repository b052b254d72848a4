#include "cli/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"

namespace tensorcast::config::config_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string ErrorOf(std::string_view yaml, const std::vector<std::string>& sets = {}) {
  auto config = Parse(yaml, "node.yaml", sets);
  EXPECT_TRUE(absl::IsInvalidArgument(config.status())) << config.status();
  return std::string(config.status().message());
}

TEST(Config, File_OverridesDefaultsAndSetsOverrideFile) {
  auto config = Parse("daemon:\n  name: node-a\n  host_pool: 64GiB\n  lanes: [ucx]\n", "node.yaml",
                      {"daemon.host_pool=2GiB"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->daemon().name(), "node-a");
  EXPECT_EQ(config->daemon().host_pool(), "2GiB");
  EXPECT_THAT(config->daemon().lanes(), ElementsAre("ucx"));
  EXPECT_EQ(config->daemon().device_runtime(), Defaults().daemon().device_runtime());
}

TEST(Config, EmptyFileOrSection_GivesDefaults) {
  for (const char* yaml : {"", "# nothing\n", "daemon:\n", "daemon:\n  name:\n  lanes:\n"}) {
    auto config = Parse(yaml, "node.yaml", {});
    ASSERT_TRUE(config.ok()) << yaml << config.status();
    EXPECT_EQ(config->SerializeAsString(), Defaults().SerializeAsString()) << yaml;
  }
}

TEST(Config, UnknownKey_ErrorHasLineAndSuggestion) {
  EXPECT_EQ(
      ErrorOf("daemon:\n  name: a\n  hots_pool: 1GiB\n"),
      "node.yaml:3: daemon.hots_pool: there is no key \"hots_pool\" in daemon; did you mean \"host_pool\"?");
  EXPECT_THAT(ErrorOf("deamon: {}\n"),
              HasSubstr("node.yaml:1: deamon: there is no key \"deamon\"; did you mean \"daemon\"?"));
}

TEST(Config, KeyOfOtherSection_IsSuggestedWithItsSection) {
  EXPECT_THAT(ErrorOf("host_pool: 1GiB\n"), HasSubstr("did you mean \"daemon.host_pool\"?"));
}

TEST(Config, KeyUnlikeAnyOther_GetsNoSuggestion) {
  EXPECT_THAT(ErrorOf("daemon:\n  zzzzzzzzzz: 1\n"), Not(HasSubstr("did you mean")));
}

TEST(Config, InvalidValue_ErrorSaysWhatIsExpected) {
  EXPECT_THAT(ErrorOf("daemon:\n  host_pool: 64gigs\n"),
              HasSubstr("node.yaml:2: daemon.host_pool: \"64gigs\" is not a size"));
  EXPECT_THAT(ErrorOf("daemon:\n  peer_timeout: 10\n"), HasSubstr("\"10\" is not a duration"));
  EXPECT_THAT(ErrorOf("daemon:\n  huge_pages: maybe\n"), HasSubstr("\"maybe\" is not true or false"));
  EXPECT_THAT(ErrorOf("daemon:\n  fake_devices: 1.5\n"), HasSubstr("is not a whole number"));
  EXPECT_THAT(ErrorOf("daemon:\n  fake_devices: 99999999999\n"), HasSubstr("is not a whole number from 1"));
  EXPECT_THAT(ErrorOf("daemon:\n  max_concurrent_ingests: 0\n"), HasSubstr("is not a whole number from 1"));
  EXPECT_THAT(ErrorOf("daemon:\n  device_runtime: gpu\n"), HasSubstr("is not one of auto, cuda, none, fake"));
  EXPECT_THAT(ErrorOf("daemon:\n  lanes: [ucx, carrier-pigeon]\n"),
              HasSubstr("\"carrier-pigeon\" is not one of"));
}

TEST(Config, InvalidYamlShape_IsAnError) {
  EXPECT_THAT(ErrorOf("daemon: 5\n"), HasSubstr("a section with keys is expected"));
  EXPECT_THAT(ErrorOf("daemon:\n  name: [a]\n"), HasSubstr("a single value is expected"));
  EXPECT_THAT(ErrorOf("daemon:\n  lanes: ucx\n"), HasSubstr("a list is expected"));
  EXPECT_THAT(ErrorOf("daemon:\n  lanes: [[ucx]]\n"), HasSubstr("a single value is expected in this list"));
  EXPECT_THAT(ErrorOf("daemon:\n  name: a\n  name: b\n"),
              HasSubstr("node.yaml:3: daemon.name: this key is written twice"));
  EXPECT_THAT(ErrorOf("[1, 2]\n"), HasSubstr("node.yaml:1: a section"));
  EXPECT_THAT(ErrorOf("daemon: {name: a\n"), HasSubstr("this is not YAML"));
}

TEST(Config, ListOfPairs_MayBeWrittenAsMap) {
  const std::string head = "observability:\n  otel:\n    ";
  auto config = Parse(head + "resource_attributes:\n      team: infra\n      service.version: 1.2.3\n" +
                          "    headers: {authorization: Bearer x}\n",
                      "node.yaml", {});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->observability().otel().resource_attributes(),
              ElementsAre("team=infra", "service.version=1.2.3"));
  EXPECT_THAT(config->observability().otel().headers(), ElementsAre("authorization=Bearer x"));
  EXPECT_THAT(ErrorOf(head + "resource_attributes: {team: [a, b]}\n"), HasSubstr("a single value"));
  EXPECT_THAT(ErrorOf("daemon:\n  lanes: {a: b}\n"), HasSubstr("a list is expected"));
}

TEST(Config, SeveralMistakes_AreReportedTogether) {
  const std::string error = ErrorOf("daemon:\n  host_pool: x\nlog:\n  level: loud\n", {"daemon.nmae=a"});
  EXPECT_THAT(error, HasSubstr("node.yaml:2:"));
  EXPECT_THAT(error, HasSubstr("node.yaml:4:"));
  EXPECT_THAT(error,
              HasSubstr("--set daemon.nmae=a: there is no key \"nmae\" in daemon; did you mean \"name\"?"));
}

TEST(Config, Set_TakesPlainTextAndListsInEitherForm) {
  auto config = Parse("", "",
                      {"client.daemon=unix:/run/a=b: c.sock", "daemon.lanes=ucx,ucx-rma",
                       "daemon.import_roots=[\"/models\", '/more']", "daemon.handle_groups="});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->client().daemon(), "unix:/run/a=b: c.sock");
  EXPECT_THAT(config->daemon().lanes(), ElementsAre("ucx", "ucx-rma"));
  EXPECT_THAT(config->daemon().import_roots(), ElementsAre("/models", "/more"));
  EXPECT_THAT(config->daemon().handle_groups(), IsEmpty());
}

TEST(Config, SetThatIsNotAnAssignment_IsAnError) {
  EXPECT_THAT(ErrorOf("", {"daemon.name"}),
              HasSubstr("--set daemon.name: a key, \"=\" and a value are expected"));
  EXPECT_THAT(ErrorOf("", {"daemon=x"}), HasSubstr("this is a section"));
  EXPECT_THAT(ErrorOf("", {"daemon.name.first=x"}), HasSubstr("\"name\" is a value"));
  EXPECT_THAT(ErrorOf("", {"=x"}), HasSubstr("there is no key \"\""));
}

TEST(Config, ToYaml_ParsesBackToTheSameConfiguration) {
  auto config = Parse("daemon:\n  name: 'yes: # \"odd\"'\n  lanes: []\n  huge_pages: off\n", "node.yaml", {});
  ASSERT_TRUE(config.ok()) << config.status();
  auto again = Parse(ToYaml(*config), "dump.yaml", {});
  ASSERT_TRUE(again.ok()) << again.status() << ToYaml(*config);
  EXPECT_EQ(ToYaml(*again), ToYaml(*config));
  EXPECT_EQ(again->daemon().SerializeAsString(), config->daemon().SerializeAsString());
  EXPECT_FALSE(again->observability().otel().has_sampling_ratio()) << "not set became zero";
}

TEST(Config, KeysOfNestedSection_AreReadAndChecked) {
  auto config = Parse("observability:\n  otel:\n    sampling_ratio: 0.25\n    tls: {ca_file: /ca}\n",
                      "node.yaml", {"observability.otel.timeout=3s"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->observability().otel().sampling_ratio(), 0.25);
  EXPECT_EQ(config->observability().otel().tls().ca_file(), "/ca");
  EXPECT_THAT(ErrorOf("observability:\n  otel:\n    timeout: 3\n"),
              HasSubstr("node.yaml:3: observability.otel.timeout: \"3\" is not a duration"));
  EXPECT_THAT(ErrorOf("observability:\n  otel:\n    sampling_ratio: many\n"), HasSubstr("is not a number"));
  EXPECT_THAT(ErrorOf("observability:\n  otel:\n    sampling_ratio: 2\n"),
              HasSubstr("node.yaml:3: observability.otel.sampling_ratio: \"2\" is not a number from 0 to 1"));
}

TEST(Config, ImpossibleValue_IsAnErrorThatNamesItsSet) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"daemon.host_pool=0", "more than 0 bytes"},
      {"daemon.host_pool=", "a value is needed"},
      {"daemon.limits.send=1000kB", "is less than 1MiB; give 1MiB a second or more, or 0 for no limit"},
      {"daemon.limits.receive=fast", "\"fast\""},
      {"daemon.limits.receive=", "a value is needed"},
      {"daemon.fake_devices=0", "is not a whole number from 1"},
      {"daemon.fake_device_memory=0", "more than 0 bytes"},
      {"daemon.copy_threads=2000000000", "is not a whole number from 0"},
      {"daemon.max_concurrent_ingests=2000000000", "is not a whole number from 1"},
      {"daemon.staging_buffers=100000", "is not a whole number from 1"},
      {"daemon.device_runtime=", "a value is needed"},
      {"daemon.listen=foo", "is not host:port"},
      {"daemon.listen=127.0.0.1:99999", "a port is a number from 0 to 65535"},
      {"daemon.listen=unix:/x", "see daemon.unix_socket"},
      {"daemon.ucx_listen=::1:7010", "in brackets"},
      {"daemon.tcp_listen=unix:/x", "see daemon.unix_socket"},
      {"daemon.tcp_advertise=[0.0.0.0:1]", "give the address that other hosts connect to"},
      {"daemon.tcp_connections=17", "is not a whole number from 0"},
      {"daemon.advertise=0.0.0.0:7001", "give the address that other hosts connect to"},
      {"daemon.global_store=http://a:1", "is not host:port"},
      {"daemon.global_store=a:0", "port 0 cannot be connected to"},
      {"daemon.global_store=a:1,unix:/x", "is not host:port"},
      {"daemon.unix_socket=/" + std::string(107, 'x'), "has 108 bytes"},
      {"daemon.lanes=[loopback]", "is not one of ucx-rma, ucx, tcp"},
      {"daemon.peer_timeout=0", "is not between 1ms and 365d"},
      {"daemon.peer_timeout=inf", "is not between 1ms and 365d"},
      {"daemon.name=\xff", "is not valid UTF-8"},
      {"global_store.listen=foo", "is not host:port"},
      {"global_store.listen=", "a value is needed"},
      {"global_store.listen=unix:", "has 0 bytes"},
      {"global_store.metadata_store=", "a value is needed"},
      {"global_store.heartbeat_interval=1ns", "is not between 1ms"},
      {"client.daemon=foo", "write host:port or unix:/path"},
      {"client.connect_timeout=0", "is not between 1ms"},
      {"log.level=", "a value is needed"},
      {"observability.otel.sampling_ratio=nan", "from 0 to 1"},
      {"observability.otel.sampling_ratio=", "a value is needed"},
      {"observability.otel.timeout=0", "is not between 1ms"},
  };
  for (const auto& [set, expected] : cases) {
    EXPECT_THAT(ErrorOf("", {set}), testing::AllOf(HasSubstr("--set " + set), HasSubstr(expected)));
  }
}

TEST(Config, Defaults_OpenNoTcpPortAndImportNothing) {
  const v1::Config config = Defaults();
  EXPECT_THAT(config.global_store().listen(), testing::StartsWith("unix:/"));
  EXPECT_EQ(config.daemon().listen(), "");
  EXPECT_EQ(config.daemon().tcp_listen(), "");
  EXPECT_EQ(config.daemon().ucx_listen(), "");
  EXPECT_THAT(config.daemon().import_roots(), IsEmpty());
}

TEST(Config, ToYaml_ShowsEveryKey) {
  const std::string yaml = ToYaml(Defaults());
  const auto* root = v1::Config::descriptor();
  for (int i = 0; i < root->field_count(); ++i) {
    const auto* section = root->field(i)->message_type();
    for (int k = 0; k < section->field_count(); ++k) {
      EXPECT_THAT(yaml, HasSubstr(absl::StrCat("  ", section->field(k)->name(), ":")));
    }
  }
}

TEST(Config, Load_ReadsFileAndReportsMissingOne) {
  const std::string path = testing::TempDir() + "/config_test.yaml";
  std::ofstream(path) << "log:\n  level: error\n";
  auto config = Load({.path = path});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->log().level(), "error");
  ASSERT_EQ(std::remove(path.c_str()), 0);
  EXPECT_TRUE(absl::IsNotFound(Load({.path = path}).status()));
}

TEST(Config, LoadOfEmptyFile_GivesDefaultsAndDeviceIsRefused) {
  const std::string path = testing::TempDir() + "/config_test_odd.yaml";
  std::ofstream(path, std::ios::trunc).close();
  auto config = Load({.path = path});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->SerializeAsString(), Defaults().SerializeAsString());
  std::ofstream(path) << std::string((1 << 20) + 1, '#');
  EXPECT_TRUE(absl::IsInvalidArgument(Load({.path = path}).status()));
  EXPECT_EQ(std::remove(path.c_str()), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(Load({.path = "/dev/zero"}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Load({.path = testing::TempDir()}).status()));
}

TEST(Config, PipeWithoutWriter_IsRefusedAtOnce) {
  const std::string path = testing::TempDir() + "/config_test_pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const absl::Status status = Load({.path = path}).status();
  EXPECT_EQ(std::remove(path.c_str()), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("is a pipe that no process has written to"));
}

// --config <(envsubst <daemon.yaml), and /dev/stdin.
TEST(Config, LoadFromPipe_ReadsToItsEndAndRefusesTooMuch) {
  const auto load = [](const std::string& content) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    absl::StatusOr<v1::Config> config;
    std::thread reader([&] { config = Load({.path = absl::StrCat("/dev/fd/", ends[0])}); });
    const size_t step = content.size() / 3 + 1;
    for (size_t at = 0; at < content.size(); at += step) {
      const std::string part = content.substr(at, step);
      EXPECT_TRUE(std::ofstream(absl::StrCat("/dev/fd/", ends[1])) << part);
    }
    close(ends[1]);
    reader.join();
    close(ends[0]);
    return config;
  };
  const auto config = load("log:\n  level: error\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->log().level(), "error");
  EXPECT_TRUE(absl::IsInvalidArgument(load(std::string((1 << 20) + 8, '#')).status()));
}

}  // namespace
}  // namespace tensorcast::config::config_test
