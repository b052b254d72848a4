// Artifacts that real daemons pack into an object store: read back, cleaned up after a crash, and beside
// those of another cluster.
#include <gmock/gmock.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "client/admin.h"
#include "objects/testing/fake_s3.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast::archives_e2e_test {
namespace {

using objects::testing::FakeReply;
using objects::testing::FakeRequest;
using objects::testing::FakeS3;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kModelBytes = 40 << 20;  // three parts
constexpr char kPlace[] = "s3://bucket/packs";

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Archives : public E2eTest {
 protected:
  // Without a global store each daemon is a cluster by itself.
  void Start(bool global_store) {
    ClusterOptions options = DefaultOptions();
    options.global_store = global_store;
    options.daemon_settings.push_back(absl::StrCat("daemon.archives=[", kPlace, "]"));
    const Environment environment = {
        {"HOME", directory_->path()},        {"AWS_PROFILE", ""},         {"AWS_REGION", "us-east-1"},
        {"AWS_ENDPOINT_URL", s3_.url()},     {"AWS_ENDPOINT_URL_S3", ""}, {"AWS_ACCESS_KEY_ID", "KEY"},
        {"AWS_SECRET_ACCESS_KEY", "secret"}, {"AWS_SESSION_TOKEN", ""},   {"no_proxy", "127.0.0.1"}};
    options.daemon_environments = {environment, environment};
    StartCluster(options);
  }
  CommandResult Run(int node, std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--daemon", cluster_->addresses(node).unix_socket});
    return RunCommand(std::move(arguments));
  }
  void EvictAll(int node, const std::string& artifact_id) {
    TC_ASSERT_OK_AND_ASSIGN(const auto admin,
                            client::AdminClient::Connect(cluster_->addresses(node).unix_socket));
    TC_ASSERT_OK_AND_ASSIGN(const auto replicas, admin->ListReplicas(Context(), artifact_id));
    for (const v1::Replica& replica : replicas) {
      TC_ASSERT_OK(admin->EvictReplica(Context(), replica.replica_id(), /*force=*/true));
    }
  }

  std::atomic<bool> kills_ = false;  // the first daemon, once it sends the second part
  FakeS3 s3_{
      {.keys = objects::Credentials{.access_key_id = "KEY", .secret_access_key = objects::Secret("secret")},
       .first = [this](const FakeRequest& request) -> std::optional<FakeReply> {
         if (request.Query("partNumber") == "2" && kills_.exchange(false)) {
           cluster_->daemon(0).Signal(SIGKILL).IgnoreError();
           return FakeReply{.status = 503};
         }
         return std::nullopt;
       }}};
};

TEST_F(Archives, ArchivedArtifact_ComesBackWhenNoReplicaIsLeft) {
  ASSERT_NO_FATAL_FAILURE(Start(/*global_store=*/true));
  // The daemon cannot open the file by itself again: only the archive has the bytes.
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  const CommandResult put = Run(0, {"put", model, "--key", "k", "--archive", kPlace});
  ASSERT_EQ(put.exit_code, 0) << put.output;
  EXPECT_THAT(s3_.keys(), SizeIs(2));
  TC_ASSERT_OK_AND_ASSIGN(const client::KeyInfo key, client(0).ResolveKey(Context(), "k"));
  ASSERT_NO_FATAL_FAILURE(EvictAll(0, key.artifact_id));
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(0).Get(Context(), "k", {}));
  TC_ASSERT_OK(Compare(*replica, model).status());
  EXPECT_THAT(Run(0, {"ls", "--long"}).output, HasSubstr(".tcpack"));

  const CommandResult kept = Run(0, {"gc", "--older-than", "0s"});
  EXPECT_EQ(kept.exit_code, 0) << kept.output;
  EXPECT_THAT(s3_.keys(), SizeIs(2)) << kept.output;
  ASSERT_EQ(Run(0, {"rm", "k"}).exit_code, 0);
  EXPECT_THAT(Run(0, {"gc", "--older-than", "0s", "--dry-run"}).output,
              HasSubstr("would delete s3://bucket/"));
  const CommandResult removed = Run(0, {"gc", "--older-than", "0s"});
  EXPECT_THAT(removed.output, AllOf(HasSubstr("deleted s3://bucket/packs/"), HasSubstr(".tcpack")));
  EXPECT_THAT(s3_.keys(), IsEmpty());
}

TEST_F(Archives, UploadOfKilledDaemon_IsEndedByGc) {
  ASSERT_NO_FATAL_FAILURE(Start(/*global_store=*/true));
  kills_ = true;
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, client::AdminClient::Connect(cluster_->addresses(0).unix_socket));
  client::PutOptions options;
  options.archive = kPlace;
  EXPECT_FALSE(admin->Import(Context(absl::Seconds(10)), model, options).ok());
  EXPECT_EQ(s3_.uploads(), 1);
  TC_ASSERT_OK(cluster_->daemon(0).Wait(SteadyNow() + kStepTimeout).status());
  TC_ASSERT_OK(cluster_->RestartDaemon(0));
  const CommandResult kept = Run(0, {"gc"});
  EXPECT_EQ(kept.exit_code, 0) << kept.output;
  EXPECT_EQ(s3_.uploads(), 1) << "younger than a day";
  EXPECT_THAT(Run(0, {"gc", "--older-than", "0s"}).output,
              HasSubstr("aborted the upload of s3://bucket/packs/"));
  EXPECT_EQ(s3_.uploads(), 0);
  EXPECT_THAT(s3_.keys(), IsEmpty());
}

TEST_F(Archives, ClustersInOnePlace_LeaveEachOtherAlone) {
  ASSERT_NO_FATAL_FAILURE(Start(/*global_store=*/false));
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  for (int cluster = 0; cluster < 2; ++cluster) {
    const CommandResult put = Run(cluster, {"put", model, "--archive", kPlace});
    ASSERT_EQ(put.exit_code, 0) << put.output;
  }
  EXPECT_THAT(s3_.keys(), SizeIs(4));
  const CommandResult removed = Run(0, {"gc", "--older-than", "0s"});
  EXPECT_EQ(removed.exit_code, 0) << removed.output;
  EXPECT_THAT(s3_.keys(), SizeIs(2)) << "those of the other cluster";
  const std::vector<std::string> left = s3_.keys();
  EXPECT_THAT(left, Each(::testing::StartsWith(left[0].substr(0, left[0].rfind('/')))));
}

TEST_F(Archives, UnlistedPlace_IsRefusedByName) {
  ASSERT_NO_FATAL_FAILURE(Start(/*global_store=*/true));
  const CommandResult put =
      Run(0, {"put", MakeModel("m.safetensors", 1 << 20), "--archive", "s3://bucket/other"});
  EXPECT_NE(put.exit_code, 0);
  EXPECT_THAT(put.output, AllOf(HasSubstr("s3://bucket/other"), HasSubstr("daemon.archives")));
  EXPECT_THAT(s3_.server().requests(), IsEmpty());
}

TEST_F(Archives, ManifestOfCommand_IsTheArtifactsOfThePut) {
  ASSERT_NO_FATAL_FAILURE(Start(/*global_store=*/true));
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  const CommandResult put = Run(0, {"put", model, "--manifest-beside"});
  ASSERT_EQ(put.exit_code, 0) << put.output;
  const CommandResult made = RunCommand({"manifest", model, "--out", directory_->path() + "/m"});
  ASSERT_EQ(made.exit_code, 0) << made.output;
  EXPECT_THAT(put.output, HasSubstr(made.output.substr(0, made.output.find('\n'))));
  EXPECT_EQ(BytesOf(directory_->path() + "/m"), BytesOf(directory_->path() + "/model.tcmanifest"));
}

}  // namespace
}  // namespace tensorcast::archives_e2e_test
