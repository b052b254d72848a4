#include "daemon/sources/origin_comparer.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/testing/temp_folder.h"
#include "core/safetensors/safetensors.h"
#include "core/testing/test_artifact.h"
#include "daemon/sources/origin_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::daemon {
namespace {

using ::testing::HasSubstr;

class OriginComparerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto roots = ImportRoots::Beneath({folder_.path()});
    ASSERT_TRUE(roots.ok()) << roots.status();
    roots_ = *std::move(roots);
    ASSERT_TRUE(WriteSafetensors(path_, artifact_.layout, {}, artifact_.image).ok());
  }

  OriginComparer::Options Options() {
    return {.roots = roots_,
            .find_manifest = [this](const std::string&) { return artifact_.manifest; },
            .publish =
                [this](const Manifest&, const v1::Origin& origin) {
                  absl::MutexLock lock(&mutex_);
                  published_.push_back(origin);
                  return store_answers_;
                },
            .retry_interval = absl::ZeroDuration()};
  }

  v1::Origin Origin() {
    v1::Origin origin;
    auto found = roots_.Find({}, path_);
    EXPECT_TRUE(found.ok()) << found.status();
    *origin.add_files() = DescribeOriginFile(found->file.identity);
    return origin;
  }

  size_t AwaitPublished(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return published_.size() >= count; };
    mutex_.AwaitWithTimeout(absl::Condition(&enough), absl::Minutes(1));
    return published_.size();
  }

  absl::Status AwaitError(OriginComparer& comparer, const v1::Origin& origin) {
    while (true) {
      const OriginComparer::Standing standing = comparer.Compare("x", origin);
      if (!standing.error.ok()) return standing.error;
    }
  }

  // Another byte in the last chunk, and the mtime of before. What it returns is the origin as an import that
  // ended before this would have it, but for a ctime that shows nothing.
  v1::Origin OverwriteWithoutATrace() {
    const v1::Origin before = Origin();
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(~static_cast<unsigned>(std::to_integer<unsigned>(artifact_.image.back()))));
    file.close();
    const int64_t mtime = before.files(0).mtime_ns();
    const timespec times[2] = {{0, UTIME_OMIT}, {mtime / 1'000'000'000, mtime % 1'000'000'000}};
    EXPECT_EQ(utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
    return Origin();
  }

  const tensorcast::testing::TempFolder folder_;
  const std::string path_ = folder_.path() + "/m.safetensors";
  const testing::TestArtifact artifact_ = testing::MakeChunkedArtifact(1, 3);
  ImportRoots roots_;
  absl::Mutex mutex_;
  std::vector<v1::Origin> published_ ABSL_GUARDED_BY(mutex_);
  absl::Status store_answers_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(OriginComparerTest, MatchingOriginFiles_ArePublishedAsComparedOnce) {
  OriginComparer comparer(Options());
  const OriginComparer::Standing begun = comparer.Compare("x", Origin());
  EXPECT_EQ(begun.total_bytes, std::filesystem::file_size(path_));
  comparer.Compare("x", Origin());
  EXPECT_EQ(AwaitPublished(1), 1);
  absl::MutexLock lock(&mutex_);
  EXPECT_TRUE(published_[0].compared());
  EXPECT_EQ(published_[0].files(0).path(), path_);
}

TEST_F(OriginComparerTest, OriginWithOtherBytes_IsDataLoss) {
  const v1::Origin origin = OverwriteWithoutATrace();
  OriginComparer comparer(Options());
  const absl::Status error = AwaitError(comparer, origin);
  EXPECT_EQ(error.code(), absl::StatusCode::kDataLoss) << error;
  EXPECT_THAT(std::string(error.message()), HasSubstr(path_));
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(published_.size(), 0);
}

TEST_F(OriginComparerTest, OriginChangedSinceImport_IsNotPublished) {
  const v1::Origin before = Origin();
  OverwriteWithoutATrace();
  {
    OriginComparer comparer(Options());
    comparer.Compare("x", before);
    // One behind the other: when this one was recorded, that one is over.
    ASSERT_TRUE(WriteSafetensors(path_, artifact_.layout, {}, artifact_.image).ok());
    comparer.Compare("y", Origin());
    EXPECT_EQ(AwaitPublished(1), 1);
  }
  absl::MutexLock lock(&mutex_);
  EXPECT_NE(published_[0].files(0).ctime_ns(), before.files(0).ctime_ns());
}

TEST_F(OriginComparerTest, FailedPublish_IsRepeatedWithoutReadingAgain) {
  {
    absl::MutexLock lock(&mutex_);
    store_answers_ = absl::UnavailableError("away");
  }
  OriginComparer comparer(Options());
  const v1::Origin origin = Origin();
  comparer.Compare("x", origin);
  EXPECT_GE(AwaitPublished(2), 2);
  std::filesystem::remove(path_);  // a reading would fail
  absl::MutexLock lock(&mutex_);
  store_answers_ = absl::OkStatus();
  const auto more = [this, had = published_.size()]()
                        ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return published_.size() > had; };
  EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&more), absl::Minutes(1)));
}

TEST_F(OriginComparerTest, ComparerDestructor_EndsRateLimitedComparison) {
  OriginComparer::Options slow = Options();
  slow.bytes_per_second = 1;
  OriginComparer comparer(slow);
  while (comparer.Compare("x", Origin()).compared_bytes == 0) {
  }
  EXPECT_LT(comparer.Compare("x", Origin()).compared_bytes, artifact_.image.size());
}

}  // namespace
}  // namespace tensorcast::daemon
