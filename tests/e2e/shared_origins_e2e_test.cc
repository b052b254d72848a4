// Objects that every node may read: when they stand in for a replica, and how a fleet reads them once.
#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/admin.h"
#include "objects/testing/fake_s3.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast::shared_origins_e2e_test {
namespace {

namespace fs = std::filesystem;
using objects::testing::FakeReply;
using objects::testing::FakeRequest;
using objects::testing::FakeS3;
using ::testing::HasSubstr;

constexpr uint64_t kModelBytes = 40 << 20;

class SharedOrigins : public E2eTest {
 protected:
  // Daemons on hosts of their own that all read the bucket, with these settings for each of them.
  void Start(FakeS3::Options s3, int daemons, const std::vector<std::vector<std::string>>& settings = {}) {
    s3.first = [this](const FakeRequest& request) -> std::optional<FakeReply> {
      const bool read = request.method == "GET" && !request.Header("range").empty();
      // One after the other, so that all nodes share the rate.
      if (read && slow_) absl::SleepFor(absl::Milliseconds(20));
      return std::nullopt;
    };
    s3_.emplace(std::move(s3));
    ClusterOptions options = DefaultOptions();
    options.daemons = daemons;
    for (int node = 0; node < daemons; ++node) {
      std::vector<std::string> of_node = {"daemon.origins=[s3://bucket/]",
                                          absl::StrCat("daemon.host_id=host-", node)};
      if (node < static_cast<int>(settings.size())) {
        of_node.insert(of_node.end(), settings[node].begin(), settings[node].end());
      }
      options.settings_of_daemon.push_back(std::move(of_node));
      options.daemon_environments.push_back({{"HOME", directory_->path()},
                                             {"AWS_PROFILE", ""},
                                             {"AWS_REGION", "us-east-1"},
                                             {"AWS_ENDPOINT_URL", s3_->url()},
                                             {"AWS_ENDPOINT_URL_S3", ""},
                                             {"AWS_ACCESS_KEY_ID", "KEY"},
                                             {"AWS_SECRET_ACCESS_KEY", "secret"},
                                             {"AWS_SESSION_TOKEN", ""},
                                             {"no_proxy", "127.0.0.1"}});
    }
    StartCluster(options);
    for (int node = 0; node < daemons; ++node) {
      TC_ASSERT_OK_AND_ASSIGN(admins_.emplace_back(),
                              client::AdminClient::Connect(cluster_->addresses(node).unix_socket));
    }
  }
  std::string Upload(uint64_t bytes = kModelBytes) {
    const std::string model = MakeModel("model.safetensors", bytes);
    std::ifstream file(model, std::ios::binary);
    s3_->Put("m.safetensors", {std::istreambuf_iterator<char>(file), {}});
    return model;
  }
  absl::StatusOr<client::PutResult> Import(int node) {
    return client(node).Import(Context(), "s3://bucket/m.safetensors", {.key = "k"});
  }
  // Of the only replica of the node.
  absl::Status Evict(int node, const std::string& artifact_id, bool force = false) {
    auto replicas = admins_[node]->ListReplicas(Context(), artifact_id);
    if (!replicas.ok()) return replicas.status();
    if (replicas->size() != 1) return absl::InternalError(absl::StrCat(replicas->size(), " replicas"));
    return admins_[node]->EvictReplica(Context(), replicas->front().replica_id(), force);
  }
  void ExpectGives(int node, const std::string& model) {
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(node).Get(Context(), "k", {}));
    TC_ASSERT_OK(Compare(*replica, model).status());
  }
  std::vector<std::string> MethodsSince(size_t before) {
    std::vector<std::string> methods;
    const std::vector<FakeRequest> requests = s3_->server().requests();
    for (size_t i = before; i < requests.size(); ++i) methods.push_back(requests[i].method);
    return methods;
  }
  // What the server was asked for, in ranges.
  uint64_t BytesReadSince(size_t before) {
    uint64_t bytes = 0;
    const std::vector<FakeRequest> requests = s3_->server().requests();
    for (size_t i = before; i < requests.size(); ++i) {
      const std::string range = requests[i].Header("range");
      const std::vector<std::string> ends = absl::StrSplit(absl::StripPrefix(range, "bytes="), '-');
      uint64_t first = 0;
      uint64_t last = 0;
      if (requests[i].method != "GET" || ends.size() != 2 || !absl::SimpleAtoi(ends[0], &first) ||
          !absl::SimpleAtoi(ends[1], &last)) {
        continue;
      }
      bytes += last - first + 1;
    }
    return bytes;
  }

  std::atomic<bool> slow_ = false;
  std::optional<FakeS3> s3_;
  std::vector<std::unique_ptr<client::AdminClient>> admins_;
};

TEST_F(SharedOrigins, VersionedObject_LetsItsLastReplicaGoAfterOneRequest) {
  ASSERT_NO_FATAL_FAILURE(Start({.keeps_versions = true}, 1));
  const std::string model = Upload();
  TC_ASSERT_OK_AND_ASSIGN(const client::PutResult put, Import(0));
  Upload();  // a newer version of the object
  const size_t before = s3_->server().requests().size();
  TC_ASSERT_OK(Evict(0, put.artifact_id));
  EXPECT_THAT(MethodsSince(before), ::testing::ElementsAre("HEAD"));
  ExpectGives(0, model);
}

TEST_F(SharedOrigins, VersionThatIsGone_KeepsTheLastReplica) {
  ASSERT_NO_FATAL_FAILURE(Start({.keeps_versions = true}, 1));
  Upload();
  TC_ASSERT_OK_AND_ASSIGN(const client::PutResult put, Import(0));
  s3_->Remove("m.safetensors");
  const absl::Status gone = Evict(0, put.artifact_id);
  EXPECT_EQ(gone.code(), absl::StatusCode::kFailedPrecondition) << gone;
  EXPECT_THAT(std::string(gone.message()), HasSubstr("s3://bucket/m.safetensors"));
}

TEST_F(SharedOrigins, ObjectThatAnotherNodeImported_CountsOnceItsBytesAreCompared) {
  ASSERT_NO_FATAL_FAILURE(Start({.keeps_versions = true}, 3, {{}, {}, {"daemon.origins=[]"}}));
  const std::string model = Upload();
  TC_ASSERT_OK_AND_ASSIGN(const client::PutResult put, Import(0));
  ExpectGives(1, model);
  TC_ASSERT_OK(Evict(0, put.artifact_id));  // the copy on node 1 is left
  TC_ASSERT_OK(Evict(1, put.artifact_id));
  ExpectGives(2, model);  // by another node, since its configuration allows it nothing
  for (const int node : {0, 1}) {
    TC_ASSERT_OK_AND_ASSIGN(const auto replicas, admins_[node]->ListReplicas(Context(), put.artifact_id));
    if (!replicas.empty()) TC_ASSERT_OK(Evict(node, put.artifact_id));
  }
  const absl::Status kept = Evict(2, put.artifact_id);
  EXPECT_EQ(kept.code(), absl::StatusCode::kFailedPrecondition) << kept;
  EXPECT_THAT(std::string(kept.message()), HasSubstr("daemon.origins"));
}

TEST_F(SharedOrigins, ObjectWithoutVersions_IsACopyOnlyWhereDeclaredImmutable) {
  ASSERT_NO_FATAL_FAILURE(Start({}, 2, {{}, {"daemon.immutable_origins=[s3://bucket/]"}}));
  const std::string model = Upload();
  TC_ASSERT_OK_AND_ASSIGN(const client::PutResult put, Import(0));
  ExpectGives(1, model);
  TC_ASSERT_OK(Evict(0, put.artifact_id));
  TC_ASSERT_OK(Evict(1, put.artifact_id));
  ExpectGives(0, model);
  const absl::Status kept = Evict(0, put.artifact_id);
  EXPECT_EQ(kept.code(), absl::StatusCode::kFailedPrecondition) << kept;
  EXPECT_THAT(std::string(kept.message()), HasSubstr("replaced or deleted"));
}

TEST_F(SharedOrigins, ColdFleetOfEight_ReadsAboutOneImage) {
  constexpr int kNodes = 8;
  constexpr uint64_t kBytes = 160 << 20;
  const std::vector<std::string> pool = {"daemon.host_pool=256MiB"};
  ASSERT_NO_FATAL_FAILURE(Start({.keeps_versions = true}, kNodes, {kNodes, pool}));
  const std::string model = Upload(kBytes);
  TC_ASSERT_OK_AND_ASSIGN(const client::PutResult put, Import(0));
  TC_ASSERT_OK(Evict(0, put.artifact_id));
  slow_ = true;
  const size_t before = s3_->server().requests().size();
  std::vector<std::thread> gets;
  for (int node = 0; node < kNodes; ++node) {
    gets.emplace_back([this, node, &model] { ExpectGives(node, model); });
  }
  for (std::thread& get : gets) get.join();
  const double images = static_cast<double>(BytesReadSince(before)) / static_cast<double>(kBytes);
  RecordProperty("images_read", absl::StrCat(images));
  EXPECT_GE(images, 0.99);
  EXPECT_LE(images, 2)
      << "each by itself they would read eight; on a busy machine some chunks are read twice";
}

}  // namespace
}  // namespace tensorcast::shared_origins_e2e_test
