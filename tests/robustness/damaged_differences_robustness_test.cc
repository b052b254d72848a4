// Differences with bytes that change in the memory of a node, in each of their parts: a follower gets the
// next version with the right bytes all the same, in time.
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/artifact/layout.h"
#include "core/replica/transfer_report.h"
#include "tests/e2e/process_memory.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

constexpr uint64_t kModelBytes = 8 << 20;
constexpr size_t kNeedleBytes = 48;
constexpr int kPublisher = 0;
constexpr int kFollower = 1;
constexpr char kKey[] = "policy";

// A part of a difference (core/difference/FORMAT.md).
struct Part {
  const char* name;
  const char* tensor;
  double at;  // as a part of the tensor; with `offset` from there
  int64_t offset;
};

constexpr Part kParts[] = {
    {"magic", "index", 0, 0},
    {"version", "index", 0, 4},
    {"image_bytes", "index", 0, 6},
    {"chunk_bytes", "index", 0, 14},
    {"mode", "index", 0, 22},
    {"record_bytes", "index", 0, 23},
    {"last entry", "index", 1, -4},
    {"number of changed elements", "records", 0, 0},
    {"content_bytes", "records", 0, 4},
    {"stored_bytes", "records", 0, 8},
    {"positions", "records", 0, 20},
    {"a stream in the middle", "records", 0.5, 0},
    {"end of the last stream", "records", 1, -1},
};

class DamagedDifferences : public RobustnessTest {
 protected:
  void SetUp() override {
    RobustnessTest::SetUp();
    ClusterOptions options = FastOptions();
    options.daemons = 2;
    options.settings_of_daemon = {{"daemon.host_id=host-0"}, {"daemon.host_id=host-1"}};
    ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
    model_ = MakeModel("v0.safetensors", kModelBytes);
    TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(kPublisher, kKey, model_));
    artifact_ = put.artifact_id;
    TC_ASSERT_OK(client(kFollower).Get(Context(), kKey, {}).status());
  }

  // The next version: one percent of the bytes differ. Its difference's id.
  std::string PublishNext() {
    std::ifstream file(model_, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(file), {}};
    ++version_;
    for (size_t i = bytes.size() / 100 + version_; i < bytes.size(); i += 100) bytes[i] ^= 1;
    model_ = absl::StrCat(directory_->path(), "/v", version_, ".safetensors");
    std::ofstream(model_, std::ios::binary) << bytes;
    const auto put = client(kPublisher).Import(Context(), model_, {.key = kKey, .base = "auto"});
    EXPECT_TRUE(put.ok()) << put.status();
    if (!put.ok() || !put->difference.has_value()) return "";
    artifact_ = put->artifact_id;
    return put->difference->artifact_id;
  }

  // Flips a bit of the part, in the pool of that node. False: this user may not.
  bool Damage(int node, const std::string& difference, const Part& part) {
    const auto replica = client(node).Get(Context(), difference);
    EXPECT_TRUE(replica.ok()) << replica.status();
    if (!replica.ok()) return true;
    const auto view = (*replica)->Find(part.tensor);
    EXPECT_TRUE(view.ok()) << view.status();
    if (!view.ok()) return true;
    const std::string bytes(reinterpret_cast<const char*>(view->host.data()), view->host.size());
    const auto at = static_cast<size_t>(part.at * static_cast<double>(bytes.size()) + part.offset);
    const size_t begin = std::min(at, bytes.size() - std::min(bytes.size(), kNeedleBytes));
    const std::string needle = bytes.substr(begin, kNeedleBytes);
    std::string damaged = needle;
    damaged[at - begin] ^= 0x11;
    const auto places = OverwriteSharedMemory(cluster_->daemon(node).pid(), needle, damaged);
    if (absl::IsPermissionDenied(places.status())) return false;
    EXPECT_TRUE(places.ok()) << places.status();
    EXPECT_GE(places.value_or(0), 1) << part.name;
    return true;
  }

  // How many chunks came by the difference; the bytes are those of the model.
  uint32_t ExpectRightBytes() {
    const auto replica = client(kFollower).Get(Context(), kKey, {});
    EXPECT_TRUE(replica.ok()) << replica.status();
    if (!replica.ok()) return 0;
    EXPECT_EQ((*replica)->artifact_id(), artifact_);
    const auto compared = Compare(**replica, model_);
    EXPECT_TRUE(compared.ok()) << compared.status();
    EXPECT_TRUE((*replica)->Verify().ok());
    uint32_t chunks = 0;
    for (const SourceReport& source : (*replica)->transfer()->sources) {
      if (source.source.lane == kDifferenceLane) chunks += source.chunks;
    }
    return chunks;
  }

  std::string model_;
  std::string artifact_;
  size_t version_ = 0;
};

TEST_F(DamagedDifferences, UndamagedDifference_IsUsed) {
  ASSERT_NE(PublishNext(), "");
  EXPECT_GT(ExpectRightBytes(), 0u);
}

TEST_F(DamagedDifferences, EachPartDamagedAtSource_FollowerGetsRightBytes) {
  for (const Part& part : kParts) {
    const std::string difference = PublishNext();
    ASSERT_NE(difference, "") << part.name;
    if (!Damage(kPublisher, difference, part)) GTEST_SKIP() << "this test needs root";
    EXPECT_EQ(ExpectRightBytes(), 0u) << part.name;
    if (HasFailure()) return;
  }
}

TEST_F(DamagedDifferences, EachPartDamagedAtFollower_VersionHasRightBytes) {
  uint32_t used = 0;
  for (const Part& part : kParts) {
    const std::string difference = PublishNext();
    ASSERT_NE(difference, "") << part.name;
    if (!Damage(kFollower, difference, part)) GTEST_SKIP() << "this test needs root";
    used += ExpectRightBytes();
    if (HasFailure()) return;
  }
  EXPECT_LT(used, std::size(kParts) * kModelBytes / kMinChunkBytes) << "the damage is met";
}

}  // namespace
}  // namespace tensorcast
