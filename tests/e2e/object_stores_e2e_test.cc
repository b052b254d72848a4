// Models that lie outside of the host, imported by a daemon with the credentials of its environment.
#include <gmock/gmock.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/admin.h"
#include "objects/testing/fake_s3.h"
#include "security/testing/address_certificate.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

namespace fs = std::filesystem;
using objects::testing::FakeReply;
using objects::testing::FakeRequest;
using objects::testing::FakeS3;
using objects::testing::FakeServer;
using objects::testing::ServeBytes;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kModelBytes = 40 << 20;
constexpr char kSecret[] = "a-secret-that-no-log-has";

std::string BytesOf(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ObjectStores : public E2eTest {
 protected:
  // The first of two nodes reads what is listed, with these variables; the other one does where it is one of
  // `readers`, and else reads nothing.
  void Start(const std::string& origins, Environment environment = {}, size_t readers = 1) {
    ClusterOptions options = DefaultOptions();
    options.settings_of_daemon.assign(readers, {absl::StrCat("daemon.origins=[", origins, "]")});
    // Nothing of the user that runs the test.
    environment.insert(environment.begin(), {{"HOME", directory_->path()},
                                             {"AWS_PROFILE", ""},
                                             {"AWS_REGION", "us-east-1"},
                                             {"AWS_ENDPOINT_URL", s3_.url()},
                                             {"AWS_ENDPOINT_URL_S3", ""},
                                             {"AWS_ACCESS_KEY_ID", "KEY"},
                                             {"AWS_SECRET_ACCESS_KEY", kSecret},
                                             {"AWS_SESSION_TOKEN", ""},
                                             {"HF_TOKEN", kSecret},
                                             {"no_proxy", "127.0.0.1"}});
    options.daemon_environments.assign(readers, environment);
    StartCluster(options);
    TC_ASSERT_OK_AND_ASSIGN(admin_, client::AdminClient::Connect(cluster_->addresses(0).unix_socket));
  }
  void Upload(const std::string& model, const std::string& key) {
    if (!fs::is_directory(model)) return s3_.Put(key, BytesOf(model));
    for (const auto& file : fs::directory_iterator(model)) {
      s3_.Put(absl::StrCat(key, "/", file.path().filename().string()), BytesOf(file.path()));
    }
  }
  CommandResult Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--daemon", cluster_->addresses(0).unix_socket});
    return RunCommand(std::move(arguments));
  }
  void ExpectGives(int node, const std::string& key, const std::string& model) {
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(node).Get(Context(), key, {}));
    TC_ASSERT_OK(Compare(*replica, model).status());
  }
  // Variables of this process, and so of its clients and commands, but not of daemons that run.
  void Set(const Environment& variables) {
    for (const auto& [name, value] : variables) {
      const char* const before = getenv(name.c_str());
      before_.emplace_back(name, before == nullptr ? std::nullopt : std::optional<std::string>(before));
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  void TearDown() override {
    for (const auto& [name, value] : before_) {
      value.has_value() ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
    }
    E2eTest::TearDown();
  }
  // Bytes that were asked for by ranges, headers of models included.
  uint64_t BytesRead() const {
    uint64_t bytes = 0;
    for (const FakeRequest& request : s3_.server().requests()) {
      uint64_t first = 0, last = 0;
      if (sscanf(request.Header("range").c_str(), "bytes=%lu-%lu", &first, &last) == 2) {
        bytes += last - first + 1;
      }
    }
    return bytes;
  }
  // The secrets stand in no log of the cluster.
  void ExpectSecretsAreSecret() {
    int logs = 0;
    for (const auto& entry : fs::recursive_directory_iterator(directory_->path())) {
      if (entry.path().filename() != "log" && entry.path().extension() != ".log") continue;
      ++logs;
      EXPECT_THAT(BytesOf(entry.path()), Not(HasSubstr(kSecret))) << entry.path();
    }
    EXPECT_GE(logs, 3);
  }

  std::vector<std::pair<std::string, std::optional<std::string>>> before_;  // what Set replaced
  std::atomic<int> reads_left_ = -1;  // until `after_reads_` is called once; below 0: it is not
  std::function<void()> after_reads_;
  std::atomic<bool> expired_ = false;
  FakeS3 s3_{
      {.keys = objects::Credentials{.access_key_id = "KEY", .secret_access_key = objects::Secret(kSecret)},
       .first = [this](const FakeRequest& request) -> std::optional<FakeReply> {
         const bool read = request.method == "GET" && !request.Header("range").empty();
         if (read && reads_left_ >= 0 && reads_left_-- == 0) after_reads_();
         if (expired_) return FakeReply{.status = 400, .body = "<Error><Code>ExpiredToken</Code></Error>"};
         return std::nullopt;
       }}};
  std::unique_ptr<client::AdminClient> admin_;
};

TEST_F(ObjectStores, PutFromS3_OtherNodeGetsTheSameTensors) {
  ASSERT_NO_FATAL_FAILURE(Start("s3://bucket/models/"));
  const std::string file = MakeModel("model.safetensors", kModelBytes);
  const std::string shards = MakeModel("sharded", kModelBytes, /*shards=*/3, /*seed=*/2);
  Upload(file, "models/one.safetensors");
  Upload(shards, "models/llama 3");
  const CommandResult put = Run({"put", "s3://bucket/models/one.safetensors", "--key", "one"});
  ASSERT_EQ(put.exit_code, 0) << put.output;
  const CommandResult folder = Run({"put", "s3://bucket/models/llama 3", "--key", "llama"});
  ASSERT_EQ(folder.exit_code, 0) << folder.output;
  ExpectGives(1, "one", file);
  ExpectGives(1, "llama", shards);

  EXPECT_THAT(Run({"ls", "--long"}).output,
              AllOf(HasSubstr("s3://bucket/models/one.safetensors"), HasSubstr("etag:\"1\"")));
  TC_ASSERT_OK_AND_ASSIGN(const client::PutResult same, client(0).Import(Context(), file, {}));
  EXPECT_TRUE(same.existed) << "the same tensors are one artifact, wherever they come from";
  ExpectSecretsAreSecret();
}

TEST_F(ObjectStores, UnlistedObject_IsRefusedByNameWithoutARequest) {
  ASSERT_NO_FATAL_FAILURE(Start("s3://bucket/models/"));
  Upload(MakeModel("model.safetensors", 1 << 20), "other/m.safetensors");
  const CommandResult put = Run({"put", "s3://bucket/other/m.safetensors", "--key", "k"});
  EXPECT_NE(put.exit_code, 0);
  EXPECT_THAT(put.output, AllOf(HasSubstr("s3://bucket/other/m.safetensors"), HasSubstr("daemon.origins")));
  EXPECT_TRUE(s3_.server().requests().empty());
  EXPECT_FALSE(client(0).ResolveKey(Context(), "k").ok());
}

TEST_F(ObjectStores, ObjectReplacedDuringPut_IsRefusedByName) {
  ASSERT_NO_FATAL_FAILURE(Start("s3://bucket/"));
  Upload(MakeModel("model.safetensors", kModelBytes), "m.safetensors");
  const std::string other = BytesOf(MakeModel("other.safetensors", kModelBytes, 1, /*seed=*/2));
  after_reads_ = [&] { s3_.Put("m.safetensors", other); };
  reads_left_ = 3;  // of the header's length, the header, and a part of the tensors
  const CommandResult put = Run({"put", "s3://bucket/m.safetensors", "--key", "k"});
  EXPECT_NE(put.exit_code, 0);
  EXPECT_EQ(reads_left_, -1);
  EXPECT_THAT(put.output, HasSubstr("s3://bucket/m.safetensors"));
  EXPECT_FALSE(client(0).ResolveKey(Context(), "k").ok());
  ExpectSecretsAreSecret();
}

TEST_F(ObjectStores, Object_IsASourceOfItsVersionAndNeverACopy) {
  ASSERT_NO_FATAL_FAILURE(Start("s3://bucket/"));
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  Upload(model, "m.safetensors");
  TC_ASSERT_OK_AND_ASSIGN(const client::PutResult put,
                          client(0).Import(Context(), "s3://bucket/m.safetensors", {.key = "k"}));
  const absl::Status refused = admin_->EvictReplica(Context(), put.replica_id, /*force=*/false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("s3://bucket/m.safetensors"));

  TC_ASSERT_OK(admin_->EvictReplica(Context(), put.replica_id, /*force=*/true));
  ExpectGives(0, "k", model);
  TC_ASSERT_OK_AND_ASSIGN(const auto replicas, admin_->ListReplicas(Context(), put.artifact_id));
  ASSERT_EQ(replicas.size(), 1);
  TC_ASSERT_OK(admin_->EvictReplica(Context(), replicas[0].replica_id(), /*force=*/true));
  Upload(MakeModel("other.safetensors", kModelBytes, 1, /*seed=*/2), "m.safetensors");
  const absl::Status changed = client(0).Get(Context(), "k", {}).status();
  EXPECT_THAT(std::string(changed.message()), HasSubstr("s3://bucket/m.safetensors")) << changed;
}

TEST_F(ObjectStores, PutFromHttpAndHub_StoresTheSameTensors) {
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  const std::string bytes = BytesOf(model);
  constexpr char kCommit[] = "0123456789abcdef0123456789abcdef01234567";
  FakeServer server([&](const FakeRequest& request) -> FakeReply {
    if (request.path == "/models/m.safetensors" ||
        request.path == absl::StrCat("/org/name/resolve/", kCommit, "/model.safetensors")) {
      return ServeBytes(request, bytes, "\"1\"");
    }
    if (request.path == "/api/models/org/name/revision/main") {
      return {.body = absl::StrCat("{\"sha\": \"", kCommit, "\"}")};
    }
    if (request.path == absl::StrCat("/api/models/org/name/tree/", kCommit)) {
      return {.body = absl::StrCat("[{\"type\": \"file\", \"oid\": \"3\", \"size\": ", bytes.size(),
                                   ", \"path\": \"model.safetensors\"}]")};
    }
    return {.status = 404};
  });
  ASSERT_NO_FATAL_FAILURE(
      Start(absl::StrCat(server.url(), "/models/, hf://org/"), {{"HF_ENDPOINT", server.url()}}));
  const CommandResult http = Run({"put", server.url() + "/models/m.safetensors", "--key", "http"});
  EXPECT_EQ(http.exit_code, 0) << http.output;
  const CommandResult hub = Run({"put", "hf://org/name", "--key", "org/name"});
  EXPECT_EQ(hub.exit_code, 0) << hub.output;
  EXPECT_THAT(hub.output, HasSubstr("already stored"));
  ExpectGives(1, "org/name", model);
  ExpectSecretsAreSecret();
}

TEST_F(ObjectStores, ClientsOwnCredentials_ReadWhatDaemonMayNot) {
  ASSERT_NO_FATAL_FAILURE(Start("", {{"AWS_ACCESS_KEY_ID", ""},
                                     {"AWS_SECRET_ACCESS_KEY", ""},
                                     {"AWS_EC2_METADATA_DISABLED", "true"},
                                     {"HF_TOKEN", ""}}));
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  Upload(model, "m.safetensors");
  const Environment none = {{"HOME", directory_->path()},
                            {"AWS_PROFILE", ""},
                            {"AWS_ACCESS_KEY_ID", ""},
                            {"AWS_SECRET_ACCESS_KEY", ""},
                            {"AWS_EC2_METADATA_DISABLED", "true"},
                            {"AWS_ENDPOINT_URL", s3_.url()}};
  Set(none);
  const CommandResult refused = Run({"put", "s3://bucket/m.safetensors", "--key", "k"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.output, AllOf(HasSubstr("daemon.origins"), HasSubstr("credentials of this process")));
  EXPECT_TRUE(s3_.server().requests().empty());

  Set({{"AWS_ACCESS_KEY_ID", "KEY"}, {"AWS_SECRET_ACCESS_KEY", kSecret}});
  const CommandResult put = Run({"put", "s3://bucket/m.safetensors", "--key", "k"});
  ASSERT_EQ(put.exit_code, 0) << put.output;
  ExpectGives(1, "k", model);
  TC_ASSERT_OK_AND_ASSIGN(const client::PutResult in_process,
                          client(0).Import(Context(), "s3://bucket/m.safetensors", {}));
  EXPECT_TRUE(in_process.existed);

  Set(none);
  EXPECT_NE(Run({"put", "s3://bucket/m.safetensors", "--key", "again"}).exit_code, 0) << "nothing was kept";
  ExpectSecretsAreSecret();
}

TEST_F(ObjectStores, CredentialsThatExpireDuringPut_AreNamed) {
  ASSERT_NO_FATAL_FAILURE(Start(
      "", {{"AWS_ACCESS_KEY_ID", ""}, {"AWS_SECRET_ACCESS_KEY", ""}, {"AWS_EC2_METADATA_DISABLED", "true"}}));
  Upload(MakeModel("model.safetensors", kModelBytes), "m.safetensors");
  Set({{"HOME", directory_->path()},
       {"AWS_PROFILE", ""},
       {"AWS_ENDPOINT_URL", s3_.url()},
       {"AWS_ACCESS_KEY_ID", "KEY"},
       {"AWS_SECRET_ACCESS_KEY", kSecret}});
  after_reads_ = [&] { expired_ = true; };
  reads_left_ = 3;
  const CommandResult put = Run({"put", "s3://bucket/m.safetensors", "--key", "k"});
  EXPECT_NE(put.exit_code, 0);
  EXPECT_THAT(put.output, AllOf(HasSubstr("s3://bucket/m.safetensors"), HasSubstr("sign in again")));
  EXPECT_FALSE(client(0).ResolveKey(Context(), "k").ok());
  ExpectSecretsAreSecret();
}

TEST_F(ObjectStores, EightImportsOnTwoNodes_ReadOnce) {
  ASSERT_NO_FATAL_FAILURE(Start("s3://bucket/", {}, /*readers=*/2));
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  Upload(model, "m.safetensors");
  std::vector<absl::StatusOr<client::PutResult>> results(8, absl::UnknownError(""));
  std::vector<std::thread> imports;
  for (int i = 0; i < 8; ++i) {
    imports.emplace_back([&, i] {
      results[i] =
          client(i % 2).Import(Context(), "s3://bucket/m.safetensors", {.key = absl::StrCat("k", i)});
    });
  }
  for (std::thread& import : imports) import.join();
  for (const auto& result : results) {
    TC_ASSERT_OK(result.status());
    EXPECT_EQ(result->artifact_id, results[0]->artifact_id);
  }
  EXPECT_LE(BytesRead(), fs::file_size(model) * 5 / 4);
  ExpectGives(0, "k1", model);
  ExpectGives(1, "k0", model);
}

TEST_F(ObjectStores, ImporterThatDies_IsReplacedByTheNextNode) {
  ASSERT_NO_FATAL_FAILURE(Start("s3://bucket/", {}, /*readers=*/2));
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  Upload(model, "m.safetensors");
  absl::Notification reading, waiting;
  after_reads_ = [&] {
    reading.Notify();
    waiting.WaitForNotification();
    cluster_->daemon(0).Signal(SIGKILL).IgnoreError();
  };
  reads_left_ = 3;
  std::thread dies([&] {
    EXPECT_FALSE(client(0).Import(Context(absl::Seconds(20)), "s3://bucket/m.safetensors", {}).ok());
  });
  reading.WaitForNotification();
  // The store answers one request at a time: the second node waits for it, and then for the claim.
  absl::StatusOr<client::PutResult> taken = absl::UnknownError("");
  std::thread takes_over(
      [&] { taken = client(1).Import(Context(), "s3://bucket/m.safetensors", {.key = "k"}); });
  waiting.Notify();
  takes_over.join();
  dies.join();
  TC_ASSERT_OK(taken.status());
  ExpectGives(1, "k", model);
}

TEST_F(ObjectStores, HttpsServer_IsCheckedAgainstTheCaBundle) {
  const std::string model = MakeModel("model.safetensors", 4 << 20);
  const std::string bytes = BytesOf(model);
  const auto files = security::testing::MakeAddressCertificate(directory_->path(), "127.0.0.1");
  const objects::testing::FakeTls tls{files.certificate, files.key};
  FakeServer server(
      [&](const FakeRequest& request) {
        return request.path == "/models/m.safetensors" ? ServeBytes(request, bytes, "\"1\"")
                                                       : FakeReply{.status = 404};
      },
      &tls);
  ASSERT_NO_FATAL_FAILURE(
      Start(absl::StrCat(server.url(), "/models/"), {{"AWS_CA_BUNDLE", files.certificate}}));
  const CommandResult put = Run({"put", server.url() + "/models/m.safetensors", "--key", "k"});
  EXPECT_EQ(put.exit_code, 0) << put.output;
  ExpectGives(1, "k", model);
}

TEST_F(ObjectStores, HubFileWithOtherBytes_IsRefusedByName) {
  const std::string bytes = BytesOf(MakeModel("model.safetensors", 4 << 20));
  constexpr char kCommit[] = "0123456789abcdef0123456789abcdef01234567";
  FakeServer server([&](const FakeRequest& request) -> FakeReply {
    if (request.path == absl::StrCat("/org/name/resolve/", kCommit, "/model.safetensors")) {
      return ServeBytes(request, bytes, "\"1\"");
    }
    if (request.path != absl::StrCat("/api/models/org/name/tree/", kCommit)) return {.status = 404};
    return {.body = absl::StrCat(R"([{"type": "file", "oid": "3", "size": )", bytes.size(),
                                 R"(, "path": "model.safetensors", "lfs": {"oid": ")", std::string(64, 'a'),
                                 R"(", "size": )", bytes.size(), "}}]")};
  });
  ASSERT_NO_FATAL_FAILURE(Start("hf://org/", {{"HF_ENDPOINT", server.url()}}));
  const CommandResult put = Run({"put", absl::StrCat("hf://org/name@", kCommit), "--key", "k"});
  EXPECT_NE(put.exit_code, 0);
  EXPECT_THAT(put.output, AllOf(HasSubstr("model.safetensors"), HasSubstr("SHA-256")));
  EXPECT_FALSE(client(0).ResolveKey(Context(), "k").ok());
}

TEST_F(ObjectStores, PasswordInUrl_IsNotShown) {
  ASSERT_NO_FATAL_FAILURE(Start("s3://bucket/"));
  for (const std::string& uri : {absl::StrCat("https://user:", kSecret, "@host/m.safetensors"),
                                 absl::StrCat("s3://KEY:", kSecret, "@bucket/m.safetensors"),
                                 absl::StrCat("https://host/m.safetensors?X-Amz-Signature=", kSecret)}) {
    const CommandResult put = Run({"put", uri, "--key", "k"});
    EXPECT_NE(put.exit_code, 0);
    EXPECT_THAT(put.output, AllOf(HasSubstr("***"), Not(HasSubstr(kSecret))));
  }
  ExpectSecretsAreSecret();
}

}  // namespace
}  // namespace tensorcast
