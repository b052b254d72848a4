#include "core/disk/import_verifier.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "core/artifact/test_util.h"
#include "core/disk/test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::import_verifier_test {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kChunkBytes = 4096;
constexpr uint64_t kFileBytes = 3 * kChunkBytes + 256;

// Two files that make up an image of seven chunks; the fourth has bytes of both.
class ImportVerifierTest : public ::testing::Test {
 protected:
  ImportVerifierTest() : a_(Make("a", 1)), b_(Make("b", 2)) {
    layout_.tensors.push_back(
        {.name = "t", .dtype = DType::kU8, .shape = {2 * kFileBytes}, .nbytes = 2 * kFileBytes});
    EXPECT_TRUE(AssignOffsets(layout_).ok());
    const std::string image = Pattern(kFileBytes, 1) + Pattern(kFileBytes, 2);
    layout_.chunk_bytes = kChunkBytes;
    AllowAnyChunkSizeForTests();
    manifest_ = *Manifest::Create(layout_, testing::DigestsOf(layout_, std::as_bytes(std::span(image))), {});
  }

  ObjectIdentity Make(const std::string& name, uint32_t seed) {
    WriteFile(folder_.File(name), Pattern(kFileBytes, seed));
    return IdentityOf(folder_.File(name));
  }
  absl::Status Compare(const ObjectReaders& files,
                       const RequestContext& context = RequestContext::Background(absl::Minutes(1))) const {
    return CompareAgain(context, files, {{0, 0, 0, kFileBytes}, {1, 0, kFileBytes, kFileBytes}}, *manifest_);
  }
  // Another byte at that place, before the file's identity is taken: as a store to a mapped page that was
  // dirty already.
  static void Store(const ObjectIdentity& file, uint64_t offset) {
    const UniqueFd fd(open(file.uri.c_str(), O_RDWR | O_CLOEXEC));
    char byte = 0;
    ASSERT_EQ(pread(fd.get(), &byte, 1, static_cast<off_t>(offset)), 1);
    byte = static_cast<char>(byte + 1);
    ASSERT_EQ(pwrite(fd.get(), &byte, 1, static_cast<off_t>(offset)), 1);
  }

  TestFolder folder_;
  const ObjectIdentity a_, b_;
  ImageLayout layout_;
  std::shared_ptr<const Manifest> manifest_;
};

TEST_F(ImportVerifierTest, UnchangedFiles_CompareEqualThoughTheirNamesAreGone) {
  EXPECT_TRUE(Compare(Opened({a_, b_})).ok());
  const ObjectReaders files = Opened({a_, b_});
  std::filesystem::remove(a_.uri);
  WriteFile(b_.uri + ".new", "other");
  std::filesystem::rename(b_.uri + ".new", b_.uri);
  const absl::Status status = Compare(files);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(ImportVerifierTest, ChangeWithoutNewMtime_IsReportedWithChunkAndFile) {
  Store(b_, kFileBytes - 1);
  const absl::Status status = Compare(Opened({a_, IdentityOf(b_.uri)}));
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("chunk 6 "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(b_.uri));
}

TEST_F(ImportVerifierTest, ChangedChunkAcrossTwoFiles_IsReportedWithBoth) {
  Store(a_, kFileBytes - 1);
  const absl::Status status = Compare(Opened({IdentityOf(a_.uri), b_}));
  EXPECT_THAT(std::string(status.message()), HasSubstr("chunk 3 "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(a_.uri + " and 1 other file"));
}

TEST_F(ImportVerifierTest, FileWithNewMtime_FailsPrecondition) {
  const ObjectReaders files = Opened({a_, b_});
  WriteFile(a_.uri, "short");
  EXPECT_EQ(Compare(files).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ImportVerifierTest, FindDifferentChunk_ReturnsChangedChunk) {
  const auto different = [&] {
    auto source = MakeObjectSource(Opened({IdentityOf(a_.uri), IdentityOf(b_.uri)}),
                                   {{0, 0, 0, kFileBytes}, {1, 0, kFileBytes, kFileBytes}}, 2 * kFileBytes);
    EXPECT_TRUE(source.ok()) << source.status();
    auto found = FindDifferentChunk(RequestContext::Background(absl::Minutes(1)), **source, *manifest_);
    EXPECT_TRUE(found.ok()) << found.status();
    return *found;
  };
  EXPECT_EQ(different(), std::nullopt);
  Store(a_, 2 * kChunkBytes + 5);
  EXPECT_EQ(different(), 2u);
}

TEST_F(ImportVerifierTest, CancelledCompare_ReturnsCancelled) {
  const RequestContext context = RequestContext::Background(absl::Minutes(1));
  context.cancellation.Cancel();
  EXPECT_EQ(Compare(Opened({a_, b_}), context).code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace tensorcast::import_verifier_test
