// Models that lie outside of the host, imported by a daemon with the credentials of its environment.
#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/admin.h"
#include "objects/testing/fake_s3.h"
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
  // The first of two nodes reads what is listed, with these variables; the other one reads nothing.
  void Start(const std::string& origins, Environment environment = {}) {
    ClusterOptions options = DefaultOptions();
    options.settings_of_daemon = {{absl::StrCat("daemon.origins=[", origins, "]")}};
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
    options.daemon_environments = {std::move(environment)};
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

  std::atomic<int> reads_left_ = -1;  // until `after_reads_` is called once; below 0: it is not
  std::function<void()> after_reads_;
  FakeS3 s3_{
      {.keys = objects::Credentials{.access_key_id = "KEY", .secret_access_key = objects::Secret(kSecret)},
       .first = [this](const FakeRequest& request) -> std::optional<FakeReply> {
         const bool read = request.method == "GET" && !request.Header("range").empty();
         if (read && reads_left_ >= 0 && reads_left_-- == 0) after_reads_();
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

}  // namespace
}  // namespace tensorcast
