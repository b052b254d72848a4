#include "daemon/sources/origin_comparer.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/testing/temp_folder.h"
#include "core/disk/import_roots.h"
#include "core/safetensors/safetensors.h"
#include "core/testing/test_artifact.h"
#include "daemon/sources/origin_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::daemon::origin_comparer_test {
namespace {

using ::testing::HasSubstr;

class OriginComparerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto roots = ImportRoots::Beneath({folder_.path()});
    ASSERT_TRUE(roots.ok()) << roots.status();
    store_ = std::make_shared<const ImportRoots>(*std::move(roots));
    ASSERT_TRUE(WriteSafetensors(path_, artifact_.layout, {}, artifact_.image).ok());
  }

  OriginComparer::Options Options() {
    return {.objects = store_,
            .find_manifest = [this](const std::string&) { return artifact_.manifest; },
            .publish =
                [this](const Manifest&, const Origin& origin) {
                  absl::MutexLock lock(&mutex_);
                  published_.push_back(origin);
                  return store_answers_;
                },
            .retry_interval = absl::ZeroDuration()};
  }

  Origin Now() {
    auto found = store_->Find({}, path_);
    EXPECT_TRUE(found.ok()) << found.status();
    return {.objects = {found->object->identity()}};
  }
  static FileVersion VersionOf(const Origin& origin) {
    return *FileVersion::Parse(origin.objects[0].version);
  }

  size_t AwaitPublished(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return published_.size() >= count; };
    mutex_.AwaitWithTimeout(absl::Condition(&enough), absl::Minutes(1));
    return published_.size();
  }

  absl::Status AwaitError(OriginComparer& comparer, const Origin& origin) {
    while (true) {
      const OriginComparer::Standing standing = comparer.Compare("x", origin);
      if (!standing.error.ok()) return standing.error;
    }
  }

  // Another byte in the last chunk, and the mtime of before. What it returns is the origin as an import that
  // ended before this would have it, but for a ctime that shows nothing.
  Origin OverwriteWithoutATrace() {
    const Origin before = Now();
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(~static_cast<unsigned>(std::to_integer<unsigned>(artifact_.image.back()))));
    file.close();
    const int64_t mtime = VersionOf(before).mtime_ns;
    const timespec times[2] = {{0, UTIME_OMIT}, {mtime / 1'000'000'000, mtime % 1'000'000'000}};
    EXPECT_EQ(utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
    return Now();
  }

  const tensorcast::testing::TempFolder folder_;
  const std::string path_ = folder_.path() + "/m.safetensors";
  const testing::TestArtifact artifact_ = testing::MakeChunkedArtifact(1, 3);
  std::shared_ptr<const ObjectStore> store_;
  absl::Mutex mutex_;
  std::vector<Origin> published_ ABSL_GUARDED_BY(mutex_);
  absl::Status store_answers_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(OriginComparerTest, MatchingOriginFiles_ArePublishedAsComparedOnce) {
  OriginComparer comparer(Options());
  const OriginComparer::Standing begun = comparer.Compare("x", Now());
  EXPECT_EQ(begun.total_bytes, std::filesystem::file_size(path_));
  comparer.Compare("x", Now());
  EXPECT_EQ(AwaitPublished(1), 1);
  absl::MutexLock lock(&mutex_);
  EXPECT_TRUE(published_[0].compared);
  EXPECT_EQ(published_[0].objects[0].uri, path_);
}

TEST_F(OriginComparerTest, OriginWithOtherBytes_IsDataLoss) {
  const Origin origin = OverwriteWithoutATrace();
  OriginComparer comparer(Options());
  const absl::Status error = AwaitError(comparer, origin);
  EXPECT_EQ(error.code(), absl::StatusCode::kDataLoss) << error;
  EXPECT_THAT(std::string(error.message()), HasSubstr(path_));
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(published_.size(), 0);
}

TEST_F(OriginComparerTest, DifferentChunkOfSecondShard_NamesItsFile) {
  const testing::TestArtifact sharded = testing::MakeTestArtifact(1, {4096, 4096}, 4096);
  Origin origin;
  for (size_t i = 0; i < 2; ++i) {
    ImageLayout shard;
    shard.tensors = {sharded.layout.tensors[i]};
    const auto begin = sharded.image.begin() + static_cast<ptrdiff_t>(shard.tensors[0].offset);
    std::vector<std::byte> bytes(begin, begin + 4096);
    if (i == 1) bytes.back() = ~bytes.back();
    ASSERT_TRUE(AssignOffsets(shard).ok());
    const std::string path = folder_.path() + "/" + std::to_string(i) + ".safetensors";
    ASSERT_TRUE(WriteSafetensors(path, shard, {}, bytes).ok());
    const auto found = store_->Find({}, path);
    ASSERT_TRUE(found.ok()) << found.status();
    origin.objects.push_back(found->object->identity());
  }
  OriginComparer::Options options = Options();
  options.find_manifest = [&sharded](const std::string&) { return sharded.manifest; };
  OriginComparer comparer(options);
  EXPECT_THAT(std::string(AwaitError(comparer, origin).message()),
              HasSubstr("/1.safetensors: chunk 1 differs"));
}

TEST_F(OriginComparerTest, OriginChangedSinceImport_IsNotPublished) {
  const Origin before = Now();
  OverwriteWithoutATrace();
  {
    OriginComparer comparer(Options());
    comparer.Compare("x", before);
    // One behind the other: when this one was recorded, that one is over.
    ASSERT_TRUE(WriteSafetensors(path_, artifact_.layout, {}, artifact_.image).ok());
    comparer.Compare("y", Now());
    EXPECT_EQ(AwaitPublished(1), 1);
  }
  absl::MutexLock lock(&mutex_);
  EXPECT_NE(VersionOf(published_[0]).ctime_ns, VersionOf(before).ctime_ns);
}

TEST_F(OriginComparerTest, FailedPublish_IsRepeatedWithoutReadingAgain) {
  {
    absl::MutexLock lock(&mutex_);
    store_answers_ = absl::UnavailableError("away");
  }
  OriginComparer comparer(Options());
  const Origin origin = Now();
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
  while (comparer.Compare("x", Now()).compared_bytes == 0) {
  }
  EXPECT_LT(comparer.Compare("x", Now()).compared_bytes, artifact_.image.size());
}

}  // namespace
}  // namespace tensorcast::daemon::origin_comparer_test
