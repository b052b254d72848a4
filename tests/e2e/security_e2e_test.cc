// A cluster with certificates, of real processes: it does its work, and refuses callers without rights.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "base/posix/unique_fd.h"
#include "base/testing/eventually.h"
#include "client/admin.h"
#include "core/artifact/layout.h"
#include "core/artifact/test_util.h"
#include "security/testing/test_authority.h"
#include "tests/e2e/e2e_test_base.h"
#include "tests/e2e/process_memory.h"

namespace tensorcast {
namespace {

namespace fs = std::filesystem;
using security::testing::TestAuthority;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kForgedBytes = 4096;  // of the second chunk, its beginning

class SecurityE2e : public E2eTest {
 protected:
  // A server that closes while a peer still writes is an error of that write, and no signal.
  SecurityE2e() { signal(SIGPIPE, SIG_IGN); }

  // By `tensorcast certs`, as the documentation says it.
  void MakeCertificates() {
    const CommandResult made =
        RunCommand({"certs", "init", "--folder", Certs(), "--trust-domain", "test.example"});
    ASSERT_EQ(made.exit_code, 0) << made.output;
    for (const char* name :
         {"global-store", "node/node-0", "node/node-1", "operator/ada", "client/trainer"}) {
      Issue(name);
    }
    std::ofstream(Certs() + "/denied") << "# no name yet\n";
  }
  void Issue(const std::string& name, int days = 90) {
    const CommandResult issued =
        RunCommand({"certs", "issue", name, "--folder", Certs(), "--valid-for", absl::StrCat(days, "d")});
    ASSERT_EQ(issued.exit_code, 0) << issued.output;
  }

  std::string Certs() const { return directory_->path() + "/certs"; }
  // The settings of a process with this certificate: "node-node-0".
  std::vector<std::string> As(const std::string& file) const {
    return {"security.ca=" + Certs() + "/ca.pem", "security.certificate=" + Certs() + "/" + file + ".pem",
            "security.key=" + Certs() + "/" + file + ".key", "security.denied=" + Certs() + "/denied"};
  }
  // A command with this certificate, to this address.
  CommandResult RunAs(const std::string& file, std::vector<std::string> command, const std::string& address) {
    for (const std::string& setting : As(file)) command.insert(command.end(), {"--set", setting});
    command.insert(command.end(), {"--daemon", address, "--set", "client.connect_timeout=2s"});
    return RunCommand(std::move(command));
  }

  void StartSecured() { StartSecured(DefaultOptions()); }
  void StartSecured(ClusterOptions options, const std::vector<std::string>& of_global_store = {}) {
    ASSERT_NO_FATAL_FAILURE(MakeCertificates());
    options.daemons = 2;
    options.global_store_settings = As("global-store");
    options.global_store_settings.emplace_back("global_store.listen=127.0.0.1:0");
    options.global_store_settings.insert(options.global_store_settings.end(), of_global_store.begin(),
                                         of_global_store.end());
    options.settings_of_daemon.resize(2);
    for (int node = 0; node < 2; ++node) {
      std::vector<std::string>& settings = options.settings_of_daemon[node];
      const std::vector<std::string> certificate = As(absl::StrCat("node-node-", node));
      settings.insert(settings.end(), certificate.begin(), certificate.end());
      settings.push_back("daemon.listen=127.0.0.1:0");
    }
    ASSERT_NO_FATAL_FAILURE(StartCluster(options));
  }
  ClusterOptions OnHostsOfTheirOwn() const {
    ClusterOptions options = DefaultOptions();
    options.settings_of_daemon = {{"daemon.host_id=host-0"}, {"daemon.host_id=host-1"}};
    return options;
  }
  // Node 0 has the only copy of model "m", in host memory, and sends a chunk of it forged without knowing:
  // what a node with a malicious owner does. Where the model's file now is; PERMISSION_DENIED where another
  // process's memory may not be written.
  absl::StatusOr<std::string> OfferAForgery() {
    const std::string model = MakeModel("model.safetensors", 8 << 20);
    std::string chunk;
    TC_RETURN_IF_ERROR(client(0).Import(Context(), model, {.key = "m"}).status());
    {
      TC_ASSIGN_OR_RETURN(const auto replica, client(0).Get(Context(), "m"));
      const auto bytes = replica->image().subspan(kMinChunkBytes, kForgedBytes);
      chunk.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    const std::string moved = model + ".moved";
    fs::rename(model, moved);  // no origin to fall back to
    std::string forged = chunk;
    testing::ForgeKeepingXxh3(std::as_writable_bytes(std::span(forged)));
    TC_ASSIGN_OR_RETURN(const int places, OverwriteSharedMemory(cluster_->daemon(0).pid(), chunk, forged));
    if (places == 0) return absl::NotFoundError("the chunk is nowhere in the daemon's memory");
    return moved;
  }
  std::string DaemonLog(int node) const {
    std::ifstream file(absl::StrCat(directory_->path(), "/node-", node, "/log"));
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  // A daemon with the certificate of node/evil, that calls itself something.
  absl::StatusOr<std::unique_ptr<Process>> StartEvil(const std::string& folder, const std::string& name) {
    std::vector<std::string> argv = {DefaultOptions().binary, "daemon"};
    std::vector<std::string> settings = As("node-evil");
    settings.insert(settings.end(),
                    {"daemon.state_dir=" + folder, "daemon.host_pool=192MiB", "daemon.listen=127.0.0.1:0",
                     "daemon.global_store=" + cluster_->global_store_address(), "daemon.name=" + name});
    for (const std::string& setting : settings) argv.insert(argv.end(), {"--set", setting});
    return Process::Start({.argv = std::move(argv), .log_path = folder + ".log"});
  }
  static bool Says(const std::string& folder, const std::string& what) {
    return testing::Eventually([&] {
      std::ifstream file(folder + ".log");
      return std::string(std::istreambuf_iterator<char>(file), {}).find(what) != std::string::npos;
    });
  }
  // A state folder with the node id of node 0, which is returned.
  std::string StealNodeId(const std::string& folder) const {
    fs::create_directory(folder);
    fs::permissions(folder, fs::perms::owner_all);
    fs::copy_file(directory_->path() + "/node-0/node_id", folder + "/node_id");
    std::ifstream file(folder + "/node_id");
    std::string node_id;
    file >> node_id;
    return node_id;
  }

  // Whether a gRPC server there speaks to a peer with these files, however these are: TLS without the checks
  // that our own clients make of themselves, then HTTP/2's greeting.
  static bool SpeaksTo(const std::string& address, const security::Identity::Files& files) {
    const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
    if (!files.certificate.empty() &&
        (SSL_CTX_use_certificate_chain_file(context.get(), files.certificate.c_str()) != 1 ||
         SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM) != 1)) {
      ADD_FAILURE() << "cannot use " << files.certificate;
      return false;
    }
    constexpr unsigned char kHttp2[] = {2, 'h', '2'};
    SSL_CTX_set_alpn_protos(context.get(), kHttp2, sizeof(kHttp2));
    const auto resolved = ResolveAddress(*ParseHostPort(address));
    const UniqueFd socket(::socket(resolved->get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(socket.get(), resolved->get(), resolved->length) != 0) return false;
    const std::unique_ptr<SSL, decltype(&SSL_free)> tls(SSL_new(context.get()), SSL_free);
    SSL_set_fd(tls.get(), socket.get());
    if (SSL_connect(tls.get()) != 1) return false;
    constexpr std::string_view kGreeting("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
    SSL_write(tls.get(), kGreeting.data(), static_cast<int>(kGreeting.size()));
    // A server that does not want us closes; one that does sends its settings. Either ends the read.
    char answer[9];
    return SSL_read(tls.get(), answer, sizeof(answer)) > 0;
  }
};

TEST_F(SecurityE2e, SecuredCluster_PutsAndGetsAndShowsItsName) {
  ASSERT_NO_FATAL_FAILURE(StartSecured());
  const std::string model = MakeModel("model.safetensors", 8 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), "m"));  // from node 0
  TC_ASSERT_OK(Compare(*replica, model).status());

  const CommandResult status =
      RunCommand({"status", "--json", "--daemon", cluster_->addresses(0).unix_socket});
  ASSERT_EQ(status.exit_code, 0) << status.output;
  EXPECT_EQ(nlohmann::json::parse(status.output)["daemon"]["security"]["name"],
            "spiffe://test.example/tensorcast/node/node-0");
  // The ports are for callers with certificates, with the rights of their roles.
  const std::string& port = cluster_->addresses(1).grpc;
  EXPECT_EQ(RunAs("client-trainer", {"get", "m"}, port).exit_code, 0);
  EXPECT_EQ(RunAs("operator-ada", {"top", "--once"}, port).exit_code, 0);
}

// Its ends refuse each other where one has no certificate: transport/tcp/tcp_tls_test.cc.
TEST_F(SecurityE2e, SecuredCluster_PullsOverTlsLane) {
  ASSERT_NO_FATAL_FAILURE(StartSecured());
  const std::string model = MakeModel("model.safetensors", 8 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), "m", {.lane = "tcp"}));
  EXPECT_EQ(replica->transfer()->stages.front().source.lane, "tcp");
  TC_ASSERT_OK(Compare(*replica, model).status());
}

TEST_F(SecurityE2e, ForgedBytesWithSameXxh3_AreRefusedAndSourceNamed) {
  ASSERT_NO_FATAL_FAILURE(StartSecured(OnHostsOfTheirOwn()));
  const auto model = OfferAForgery();
  if (absl::IsPermissionDenied(model.status())) GTEST_SKIP() << model.status() << ": this test needs root";
  TC_ASSERT_OK(model.status());
  const auto got = client(1).Get(Context(), "m", {.lane = "tcp"});
  EXPECT_EQ(got.status().code(), absl::StatusCode::kDataLoss) << got.status();
  EXPECT_THAT(std::string(got.status().message()),
              AllOf(HasSubstr("from tcp node-0"), HasSubstr("is forged: the XXH3 digest is right")));
  // What else it brought may stay, without that chunk.
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, client::AdminClient::Connect(cluster_->addresses(1).unix_socket));
  TC_ASSERT_OK_AND_ASSIGN(const auto held, admin->ListReplicas(Context(), ""));
  for (const v1::Replica& replica : held) {
    EXPECT_EQ(replica.state(), v1::REPLICA_STATE_PARTIAL) << "a replica was made of forged bytes";
    EXPECT_LT(replica.chunks_present(), replica.chunks_total());
  }
  EXPECT_FALSE(client(1).Get(Context(), "m", {.lane = "tcp"}).ok()) << "and the next get goes on from it";
}

// What the test above refuses is otherwise right: it came, and by XXH3 it is the model's.
TEST_F(SecurityE2e, ForgedBytesWithoutCertificates_AreAccepted) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(OnHostsOfTheirOwn()));
  const auto model = OfferAForgery();
  if (absl::IsPermissionDenied(model.status())) GTEST_SKIP() << model.status() << ": this test needs root";
  TC_ASSERT_OK(model.status());
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), "m", {.lane = "tcp"}));
  EXPECT_EQ(Compare(*replica, *model).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(SecurityE2e, OperatorCallByClientOrDaemon_IsRefusedByGlobalStore) {
  ASSERT_NO_FATAL_FAILURE(StartSecured());
  const std::string model = MakeModel("model.safetensors", 1 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  const std::vector<std::string> remove = {"key", "rm", "m"};

  const CommandResult by_client = RunAs("client-trainer", remove, cluster_->addresses(1).grpc);
  EXPECT_EQ(by_client.exit_code, 1);
  EXPECT_THAT(by_client.output, HasSubstr("call GlobalStore/DeleteKey as "
                                          "spiffe://test.example/tensorcast/client/trainer: the call "
                                          "requires the role operator"));
  // A daemon forwards no caller's request to delete, not even its own operator's: its certificate would be
  // enough to.
  const CommandResult by_socket =
      RunCommand({"key", "rm", "m", "--daemon", cluster_->addresses(0).unix_socket});
  EXPECT_EQ(by_socket.exit_code, 1);
  EXPECT_THAT(by_socket.output, HasSubstr("on behalf of operator"));
  EXPECT_EQ(RunAs("node-node-1", remove, cluster_->global_store_address()).exit_code, 1);
  EXPECT_EQ(RunAs("client-trainer", {"key", "resolve", "m"}, cluster_->global_store_address()).exit_code, 0);

  const CommandResult by_operator = RunAs("operator-ada", remove, cluster_->global_store_address());
  EXPECT_EQ(by_operator.exit_code, 0) << by_operator.output;
  EXPECT_NE(RunAs("client-trainer", {"key", "resolve", "m"}, cluster_->global_store_address()).exit_code, 0);
}

TEST_F(SecurityE2e, Replicate_IsAllowedToOperatorAndRefusedToClient) {
  ASSERT_NO_FATAL_FAILURE(StartSecured(OnHostsOfTheirOwn()));
  const std::string model = MakeModel("model.safetensors", 8 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  const std::vector<std::string> replicate = {"replicate", "m", "--to", "node-1"};

  const CommandResult by_client = RunAs("client-trainer", replicate, cluster_->global_store_address());
  EXPECT_EQ(by_client.exit_code, 1);
  EXPECT_THAT(by_client.output,
              ContainsRegex("call GlobalStore/ReplicateArtifact as [^ ]*client/trainer: the call requires"));
  const CommandResult by_operator = RunAs("operator-ada", replicate, cluster_->global_store_address());
  EXPECT_EQ(by_operator.exit_code, 0) << by_operator.output;
  EXPECT_THAT(by_operator.output, HasSubstr("node-1:cpu"));
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), "m"));
  EXPECT_FALSE(replica->transfer().has_value()) << "it had to be brought";
  TC_ASSERT_OK(Compare(*replica, model).status());
}

TEST_F(SecurityE2e, Key_IsBoundOnlyByNamesThatItsPrefixAllows) {
  ASSERT_NO_FATAL_FAILURE(StartSecured(DefaultOptions(), {"security.keys=prod/=client/release"}));
  Issue("client/release");
  const std::string model = MakeModel("model.safetensors", 1 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto imported, client(0).Import(Context(), model, {.key = "m"}));
  const std::vector<std::string> bind = {"key", "bind", "prod/m", imported.artifact_id};
  // By way of a node, as clients come.
  const std::string& node = cluster_->addresses(1).grpc;
  const CommandResult refused = RunAs("client-trainer", bind, node);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.output, AllOf(HasSubstr("spiffe://test.example/tensorcast/client/trainer"),
                                    HasSubstr("keys that begin with prod/; let client/release")));
  EXPECT_EQ(RunAs("client-release", bind, node).exit_code, 0);
  EXPECT_EQ(RunAs("client-trainer", {"key", "bind", "test/m", imported.artifact_id}, node).exit_code, 0);
  // What a put or an import binds is bound by the caller that asked, too: here a program of the host.
  const auto put = client(0).Import(Context(), model, {.key = "prod/m"});
  EXPECT_EQ(put.status().code(), absl::StatusCode::kPermissionDenied) << put.status();
  // An operator may, at the global store itself.
  const CommandResult by_operator = RunAs("operator-ada", bind, cluster_->global_store_address());
  EXPECT_EQ(by_operator.exit_code, 0) << by_operator.output;
}

TEST_F(SecurityE2e, UnauthenticatedPeers_ReceiveNoBytes) {
  ASSERT_NO_FATAL_FAILURE(StartSecured());
  const TestAuthority other("test.example");
  // Of our own authority, and over.
  std::ifstream certificate(Certs() + "/ca.pem"), key(Certs() + "/ca.key");
  const security::CertifiedKey ours{{std::istreambuf_iterator<char>(certificate), {}},
                                    {std::istreambuf_iterator<char>(key), {}}};
  const absl::Time now = absl::Now();
  TC_ASSERT_OK_AND_ASSIGN(
      const security::CertifiedKey over,
      security::IssueCertificate(ours, *security::ParseNameIn("test.example", "operator/ada"),
                                 {.from = now - absl::Hours(2), .until = now - absl::Hours(1)}));
  std::ofstream(Certs() + "/over.pem") << over.certificate;
  std::ofstream(Certs() + "/over.key") << over.key;
  // Of our own authority, with a name of another domain.
  TC_ASSERT_OK_AND_ASSIGN(
      const security::CertifiedKey foreign,
      security::IssueCertificate(ours, *security::ParseNameIn("other.example", "operator/ada"),
                                 {.from = now - absl::Hours(1), .until = now + absl::Hours(1)}));
  std::ofstream(Certs() + "/foreign.pem") << foreign.certificate;
  std::ofstream(Certs() + "/foreign.key") << foreign.key;
  const auto files = [&](const std::string& name) {
    return security::Identity::Files{.certificate = Certs() + "/" + name + ".pem",
                                     .key = Certs() + "/" + name + ".key"};
  };
  for (const std::string& port :
       {cluster_->global_store_address(), cluster_->addresses(0).grpc, cluster_->addresses(1).grpc}) {
    EXPECT_TRUE(SpeaksTo(port, files("client-trainer"))) << port;
    EXPECT_FALSE(SpeaksTo(port, {})) << port << ": without a certificate";
    EXPECT_FALSE(SpeaksTo(port, files("over"))) << port << ": with one that is over";
    EXPECT_FALSE(SpeaksTo(port, files("foreign"))) << port << ": with a name of another domain";
    EXPECT_FALSE(SpeaksTo(port, other.Issue("operator/ada"))) << port << ": of another authority";
    const auto in_clear = RunCommand({"status", "--daemon", port, "--set", "client.connect_timeout=1h"});
    EXPECT_NE(in_clear.exit_code, 0) << port << ": in clear";
    EXPECT_THAT(in_clear.output, HasSubstr("if the daemon requires certificates")) << port;
  }
  // A name is denied without a restart.
  std::ofstream(Certs() + "/denied") << "spiffe://test.example/tensorcast/client/trainer\n";
  for (const std::string& port : {cluster_->global_store_address(), cluster_->addresses(0).grpc}) {
    EXPECT_TRUE(testing::Eventually([&] { return !SpeaksTo(port, files("client-trainer")); })) << port;
    EXPECT_TRUE(SpeaksTo(port, files("operator-ada"))) << port;
  }

  const std::string model = MakeModel("model.safetensors", 1 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  TC_ASSERT_OK(client(1).Get(Context(), "m").status());
}

TEST_F(SecurityE2e, NodeWithNameOrIdOfOtherNode_IsRefused) {
  ASSERT_NO_FATAL_FAILURE(StartSecured());
  Issue("node/evil");
  // By another's name.
  const std::string renamed = directory_->path() + "/renamed";
  TC_ASSERT_OK_AND_ASSIGN(const auto first, StartEvil(renamed, "node-0"));
  EXPECT_TRUE(Says(renamed, "node/evil may not register as node-0"));
  // With another's id.
  const std::string stolen = directory_->path() + "/stolen";
  StealNodeId(stolen);
  TC_ASSERT_OK_AND_ASSIGN(const auto second, StartEvil(stolen, "evil"));
  EXPECT_TRUE(Says(stolen, "node/evil may not act as node node-0"));

  const CommandResult status = RunCommand({"status", "--daemon", cluster_->addresses(0).unix_socket});
  EXPECT_EQ(status.exit_code, 0) << status.output;
  EXPECT_THAT(status.output, Not(HasSubstr("evil")));
  first->Stop(kStepTimeout).IgnoreError();
  second->Stop(kStepTimeout).IgnoreError();
}

// Also where no process is left that knows: the node is away, and the global store was killed.
TEST_F(SecurityE2e, NodeId_BelongsToOneNameUntilOperatorForgetsIt) {
  ASSERT_NO_FATAL_FAILURE(StartSecured());
  Issue("node/evil");
  const std::string stolen = directory_->path() + "/stolen";
  const std::string node_id = StealNodeId(stolen);
  const std::vector<std::string> forget = {"node", "forget", node_id};
  const auto forget_as = [&](const std::string& name) {
    return RunAs(name, forget, cluster_->global_store_address());
  };
  EXPECT_THAT(forget_as("operator-ada").output, HasSubstr("the node is alive; stop the node's daemon first"));

  TC_ASSERT_OK(cluster_->daemon(0).Stop(kStepTimeout).status());
  TC_ASSERT_OK(cluster_->global_store().Signal(SIGKILL));
  TC_ASSERT_OK(cluster_->global_store().Wait(SteadyNow() + kStepTimeout).status());
  TC_ASSERT_OK(cluster_->RestartGlobalStore());
  TC_ASSERT_OK_AND_ASSIGN(const auto evil, StartEvil(stolen, "evil"));
  EXPECT_TRUE(Says(stolen, "node/evil may not act as node node-0"));
  EXPECT_THAT(forget_as("client-trainer").output, HasSubstr("the call requires the role operator"));
  EXPECT_THAT(forget_as("node-evil").output, HasSubstr("the call requires the role operator"));

  const CommandResult forgotten = forget_as("operator-ada");
  EXPECT_EQ(forgotten.exit_code, 0) << forgotten.output;
  // It tries again by itself, and has the id from then on.
  EXPECT_TRUE(testing::Eventually([&] {
    return RunAs("operator-ada", {"status"}, cluster_->addresses(1).grpc).output.find("evil") !=
           std::string::npos;
  }));
  EXPECT_THAT(forget_as("operator-ada").output, HasSubstr("node evil ("));
  evil->Stop(kStepTimeout).IgnoreError();
}

TEST_F(SecurityE2e, DrainOfAnotherNode_NeedsOperatorAtTheGlobalStore) {
  ASSERT_NO_FATAL_FAILURE(StartSecured());
  const std::string& daemon = cluster_->addresses(0).unix_socket;
  EXPECT_EQ(RunCommand({"node", "drain", "node-0", "--daemon", daemon}).exit_code, 0);
  EXPECT_EQ(RunCommand({"node", "undrain", "node-0", "--daemon", daemon}).exit_code, 0);
  const CommandResult refused = RunCommand({"node", "drain", "node-1", "--daemon", daemon});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.output,
              HasSubstr("may drain only its own node; connect to the global store's address"));
  const std::string store = cluster_->global_store_address();
  EXPECT_THAT(RunAs("client-trainer", {"node", "drain", "node-1"}, store).output,
              HasSubstr("PERMISSION_DENIED"));
  const CommandResult drained = RunAs("operator-ada", {"node", "drain", "node-1"}, store);
  EXPECT_EQ(drained.exit_code, 0) << drained.output;
  EXPECT_THAT(RunCommand({"node", "ls", "--daemon", daemon}).output,
              ContainsRegex("node-1 +[^ ]+ +draining"));
}

TEST_F(SecurityE2e, ReplacedCertificate_IsUsedWithoutRestart) {
  ASSERT_NO_FATAL_FAILURE(StartSecured());
  const auto ends = [&]() -> std::string {
    const CommandResult status =
        RunCommand({"status", "--json", "--daemon", cluster_->addresses(0).unix_socket});
    return nlohmann::json::parse(status.output)["daemon"]["security"]["certificate_ends"];
  };
  const std::string before = ends();
  Issue("node/node-0", 30);
  EXPECT_TRUE(testing::Eventually([&] { return ends() < before; }));
  const std::string model = MakeModel("model.safetensors", 1 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  TC_ASSERT_OK(client(1).Get(Context(), "m").status());
  EXPECT_EQ(RunAs("client-trainer", {"status"}, cluster_->addresses(0).grpc).exit_code, 0);
}

TEST_F(SecurityE2e, CertsInitTwice_FailsAndCertsShowPrintsName) {
  ASSERT_NO_FATAL_FAILURE(MakeCertificates());
  EXPECT_EQ(RunCommand({"certs", "init", "--folder", Certs(), "--trust-domain", "test.example"}).exit_code,
            1);
  const CommandResult wrong = RunCommand({"certs", "issue", "root", "--folder", Certs()});
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.output, HasSubstr("node/NAME"));
  const CommandResult shown = RunCommand({"certs", "show", "--json", "--file", Certs() + "/node-node-0.pem"});
  ASSERT_EQ(shown.exit_code, 0) << shown.output;
  EXPECT_EQ(nlohmann::json::parse(shown.output)[0]["name"], "spiffe://test.example/tensorcast/node/node-0");
  for (const char* key : {"ca.key", "node-node-0.key"}) {
    EXPECT_EQ(fs::status(Certs() + "/" + key).permissions(), fs::perms::owner_read | fs::perms::owner_write)
        << key;
  }
}

}  // namespace
}  // namespace tensorcast
