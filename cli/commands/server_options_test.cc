// What a start refuses beyond the form of single values, and what the rooms read.
// tests/e2e/config_check_e2e_test compares the refusals of the check with those of real starts.
#include "cli/commands/server_options.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "cli/config/config.h"
#include "cli/config/message_reader.h"
#include "security/testing/test_authority.h"
#include "transport/ucx/ucx_lanes.h"

namespace tensorcast::cli::server_options_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::Config ConfigWith(std::vector<std::string> sets) {
  const std::string folder = ::testing::TempDir() + "/server_options_test";
  sets.insert(sets.begin(),
              {"daemon.state_dir=" + folder + "/node", "daemon.host_pool=192MiB",
               "daemon.device_runtime=none", "global_store.listen=unix:" + folder + "/store.sock",
               "global_store.metadata_path=" + folder + "/meta.db"});
  auto config = config::Parse("", "", sets);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : v1::Config();
}

std::string Refused(std::vector<std::string> sets, Roles roles = Roles::kAll) {
  const absl::Status status = ReadServerOptions(ConfigWith(std::move(sets)), roles).status();
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(ServerOptions, DefaultConfiguration_IsAcceptedForEveryRole) {
  for (const Roles roles : {Roles::kAll, Roles::kDaemon, Roles::kGlobalStore}) {
    EXPECT_EQ(Refused({}, roles), "");
  }
}

TEST(ServerOptions, SeveralFindings_AreLinesThatBeginWithTheirKeys) {
  const std::string refused =
      Refused({"daemon.handle_groups=no-such-group", "daemon.lanes=[ucx, ucx]", "global_store.node_ttl=1s"});
  EXPECT_THAT(refused, HasSubstr("global_store.node_ttl: \"1s\" is less than two heartbeats (4s)"));
  EXPECT_THAT(refused, HasSubstr("\ndaemon.lanes: \"ucx\" is named twice"));
  EXPECT_THAT(refused, HasSubstr("\ndaemon.handle_groups: \"no-such-group\" is not a group of this host"));
}

TEST(ServerOptions, NcclSetting_MustBeAutoOffOrAnExistingLibrary) {
  EXPECT_EQ(Refused({"daemon.nccl=off"}), "");
  EXPECT_EQ(Refused({"daemon.nccl=/proc/self/exe"}), "");
  EXPECT_THAT(Refused({"daemon.nccl=on"}),
              HasSubstr("daemon.nccl: \"on\" is not auto, off or a file on this host"));
}

TEST(ServerOptions, InvalidOrRepeatedLabel_IsRefused) {
  EXPECT_EQ(Refused({"daemon.labels=zone=a,rack=r3"}), "");
  EXPECT_THAT(Refused({"daemon.labels=zone=a b"}),
              HasSubstr("daemon.labels: \"a b\" is not a value of a label"));
  EXPECT_THAT(Refused({"daemon.labels=zone=a,zone=b"}), HasSubstr("\"zone\" is given twice"));
}

TEST(ServerOptions, SectionOfOtherRole_IsNotChecked) {
  EXPECT_EQ(Refused({"daemon.handle_groups=no-such-group"}, Roles::kGlobalStore), "");
  EXPECT_EQ(Refused({"global_store.metadata_path=:memory:"}, Roles::kDaemon), "");
  EXPECT_THAT(Refused({"global_store.metadata_path=:memory:"}, Roles::kGlobalStore),
              HasSubstr("global_store.metadata_store: memory"));
}

// A daemon without a global store has one within, with lifetimes that are its own business.
TEST(ServerOptions, DaemonWithoutGlobalStore_ChecksGlobalStoreSection) {
  EXPECT_THAT(Refused({"global_store.grant_ttl=1s"}, Roles::kDaemon), HasSubstr("global_store.grant_ttl"));
  EXPECT_EQ(
      Refused({"global_store.grant_ttl=1s", "daemon.global_store=unix:/run/store.sock"}, Roles::kDaemon), "");
}

TEST(ServerOptions, WildcardListenAddress_NeedsAdvertise) {
  EXPECT_THAT(Refused({"daemon.listen=0.0.0.0:0"}), HasSubstr("set daemon.advertise"));
  EXPECT_EQ(Refused({"daemon.listen=0.0.0.0:0", "daemon.advertise=127.0.0.1:0", "security.insecure=true"}),
            "");
  EXPECT_THAT(Refused({"daemon.advertise=127.0.0.1:7001"}),
              HasSubstr("this daemon does not listen; set daemon.listen"));
}

// Settings for a process with this certificate.
std::vector<std::string> As(const security::testing::TestAuthority& authority, std::string_view path) {
  const security::Identity::Files files = authority.Issue(path);
  return {"security.ca=" + files.ca, "security.certificate=" + files.certificate,
          "security.key=" + files.key};
}

std::vector<std::string> With(std::vector<std::string> settings, const std::vector<std::string>& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

// This host may have no RDMA device.
void PutUcxOnTcp() { setenv(transport::kUcxOverTcpVariable, "1", 1); }

TEST(ServerOptions, TcpListenerWithoutCertificates_NeedsInsecure) {
  PutUcxOnTcp();
  const std::vector<std::string> everywhere = {"security.trusted_fabric=true", "daemon.listen=0.0.0.0:0",
                                               "daemon.advertise=127.0.0.1:0", "daemon.tcp_listen=[::]:0",
                                               "daemon.ucx_listen=[::]:0",     "global_store.listen=[::]:0"};
  const std::string refused = Refused(everywhere);
  for (const char* key : {"daemon.listen: \"0.0.0.0:0\"", "daemon.tcp_listen: \"[::]:0\"",
                          "daemon.ucx_listen: \"[::]:0\"", "global_store.listen"}) {
    EXPECT_THAT(refused, HasSubstr(key));
  }
  EXPECT_THAT(refused, HasSubstr("security.insecure: true"));
  EXPECT_EQ(Refused(With(everywhere, {"security.insecure=true"})), "");
}

TEST(ServerOptions, LoopbackListenerWithoutCertificates_NeedsInsecure) {
  PutUcxOnTcp();
  const std::vector<std::string> loopback = {"daemon.listen=127.0.0.1:0", "daemon.tcp_listen=127.0.0.1:0",
                                             "daemon.ucx_listen=[::1]:0", "global_store.listen=localhost:0",
                                             "security.trusted_fabric=true"};
  const std::string refused = Refused(loopback);
  for (const char* key : {"daemon.listen: \"127.0.0.1:0\"", "daemon.tcp_listen: \"127.0.0.1:0\"",
                          "daemon.ucx_listen: \"[::1]:0\"", "global_store.listen: \"localhost:0\""}) {
    EXPECT_THAT(refused,
                HasSubstr(absl::StrCat(key, " has no certificates, so every user of this host may")));
  }
  EXPECT_EQ(Refused(With(loopback, {"security.insecure=true"})), "");
  // A process reached by unix sockets alone needs no word about it.
  EXPECT_EQ(Refused({"global_store.listen=unix:/run/store.sock"}), "");
}

TEST(ServerOptions, UcxListener_NeedsTrustedFabricEvenWithCertificates) {
  PutUcxOnTcp();
  const security::testing::TestAuthority authority;
  const auto node =
      With(As(authority, "node/a"), {"daemon.listen=0.0.0.0:0", "daemon.advertise=127.0.0.1:0"});
  EXPECT_EQ(Refused(node, Roles::kDaemon), "");
  for (const auto& without_ucx : {node, std::vector<std::string>{}}) {
    const auto with_ucx = With(without_ucx, {"daemon.ucx_listen=127.0.0.1:0"});
    EXPECT_THAT(Refused(with_ucx, Roles::kDaemon), HasSubstr("security.trusted_fabric: true"));
    std::vector<std::string> trusted = With(with_ucx, {"security.trusted_fabric=true"});
    if (without_ucx.empty()) trusted.push_back("security.insecure=true");
    EXPECT_EQ(Refused(trusted, Roles::kDaemon), "");
  }
  EXPECT_THAT(Refused(With(node, {"security.insecure=true"}), Roles::kDaemon),
              HasSubstr("security.insecure: this key has no effect: certificates are set"));
}

TEST(ServerOptions, ProblemOfAddressSharedByLanes_IsReportedOnce) {
  PutUcxOnTcp();
  EXPECT_EQ(
      Refused(
          {"daemon.ucx_listen=127.0.0.1:65535", "security.trusted_fabric=true", "security.insecure=true"}),
      "daemon.ucx_listen: \"127.0.0.1:65535\" has the last port, and the lane ucx-rma needs the next port; "
      "choose a port below 65535");
}

TEST(ServerOptions, CertificateOfOtherRole_IsRefused) {
  const security::testing::TestAuthority authority;
  EXPECT_EQ(Refused(As(authority, "global-store"), Roles::kGlobalStore), "");
  EXPECT_THAT(Refused(As(authority, "node/a"), Roles::kGlobalStore), HasSubstr("security.certificate"));
  EXPECT_THAT(Refused(As(authority, "operator"), Roles::kDaemon), HasSubstr("a daemon must name node/NAME"));
}

TEST(ServerOptions, IncompleteCertificatesOrSettingsWithoutThem_AreRefused) {
  const security::testing::TestAuthority authority;
  EXPECT_THAT(Refused({"security.ca=" + authority.ca()}), HasSubstr("security.certificate is empty"));
  EXPECT_THAT(Refused({"security.keys=prod/=client/release"}),
              HasSubstr("security.keys: the rules are about certificates"));
  EXPECT_THAT(
      Refused(With(As(authority, "global-store"), {"security.keys=prod/=node/a"}), Roles::kGlobalStore),
      HasSubstr("security.keys: parse key rule \"prod/=node/a\": \"node/a\" cannot bind keys"));
  EXPECT_EQ(Refused(With(As(authority, "global-store"), {"security.keys=prod/=client/release operator"}),
                    Roles::kGlobalStore),
            "");
  EXPECT_THAT(Refused({"security.denied=/no/such/file"}),
              HasSubstr("security.denied: \"/no/such/file\" is about"));
  EXPECT_THAT(Refused(With(As(authority, "node/a"), {"security.denied=/no/such/file"}), Roles::kDaemon),
              HasSubstr("open /no/such/file"));
}

TEST(ServerOptions, PoolSmallerThanStagingBuffers_IsRefused) {
  EXPECT_THAT(Refused({"daemon.host_pool=64MiB"}), HasSubstr("daemon.host_pool: \"64MiB\" is less than"));
  EXPECT_EQ(Refused({"daemon.host_pool=64MiB", "daemon.staging_buffers=1"}), "");
}

TEST(ServerOptions, InvalidTelemetrySetting_IsRefused) {
  EXPECT_THAT(Refused({"observability.otel.endpoint=foo"}),
              HasSubstr("observability.otel.endpoint: \"foo\""));
  EXPECT_THAT(Refused({"observability.trace_file=/no/such/folder/t.json"}),
              HasSubstr("make this folder first"));
}

TEST(ServerOptions, ReadServerOptions_TakesConfiguredValues) {
  const auto options = ReadServerOptions(
      ConfigWith({"global_store.node_ttl=1m30s", "global_store.max_connections=7", "daemon.huge_pages=false",
                  "daemon.labels=zone=a", "daemon.keep_pool=keeper", "daemon.put_rings=16MiB"}),
      Roles::kAll);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->store.node_ttl, absl::Seconds(90));
  EXPECT_EQ(options->store.heartbeat_interval, absl::Seconds(2));
  EXPECT_EQ(options->store.max_connections, 7);
  EXPECT_THAT(options->store.filling_lanes, ::testing::ElementsAre("local", "ucx", "tcp"));
  EXPECT_EQ(options->daemon.pool.bytes, uint64_t{192} << 20);
  EXPECT_FALSE(options->daemon.pool.use_huge_pages);
  EXPECT_EQ(options->daemon.labels, (Labels{{"zone", "a"}}));
  EXPECT_TRUE(options->daemon.keeper.on());
  EXPECT_EQ(options->daemon.handles.put_rings_bytes, uint64_t{16} << 20);
}

// Compares what each room has by itself with the default that config.proto declares for the key.
class DefaultsChecker final : public ConfigReader {
 public:
  void Read(std::string_view key, bool& value) override { Compare(key, value); }
  void Read(std::string_view key, int& value) override { Compare(key, value); }
  void Read(std::string_view key, uint64_t& value) override { Compare(key, value); }
  void Read(std::string_view key, absl::Duration& value) override { Compare(key, value); }
  void Read(std::string_view key, std::string& value) override { Compare(key, value); }
  // A list that a room does not preset is not compared: rooms read some numbers as texts.
  void Read(std::string_view key, std::vector<std::string>& value) override {
    if (!value.empty()) return Compare(key, value);
    keys_.emplace(key);
    declared_.Read(key, value);
  }

  const std::set<std::string>& keys() const { return keys_; }

 private:
  template <class T>
  void Compare(std::string_view key, T& value) {
    keys_.emplace(key);
    const T own = value;
    declared_.Read(key, value);
    // These depend on the user.
    const std::set<std::string_view> of_user = {"daemon.state_dir", "global_store.listen",
                                                "global_store.metadata_path"};
    if (of_user.contains(key)) return;
    EXPECT_EQ(own, value) << key;
  }

  const v1::Config defaults_ = config::Defaults();
  config::MessageReader declared_{defaults_};
  std::set<std::string> keys_;
};

void AddKeys(const google::protobuf::Descriptor& section, const std::string& prefix,
             std::set<std::string>& keys) {
  for (int i = 0; i < section.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *section.field(i);
    const std::string path = absl::StrCat(prefix, ".", field.name());
    field.message_type() != nullptr ? AddKeys(*field.message_type(), path, keys) : (void)keys.insert(path);
  }
}

TEST(ServerOptions, EveryKey_IsReadByARoomWithTheDeclaredDefault) {
  DefaultsChecker checker;
  global_store::GlobalStoreOptions().FromConfig(checker);
  global_store::EtcdOptions().FromConfig(checker);
  daemon::DaemonOptions().FromConfig(checker);
  std::set<std::string> declared;
  AddKeys(*v1::GlobalStoreConfig::descriptor(), "global_store", declared);
  AddKeys(*v1::DaemonConfig::descriptor(), "daemon", declared);
  AddKeys(*v1::SecurityConfig::descriptor(), "security", declared);
  declared.insert("observability.recorder.slow_transfer");  // the only one of its section that a room reads
  EXPECT_EQ(checker.keys(), declared);
}

}  // namespace
}  // namespace tensorcast::cli::server_options_test
