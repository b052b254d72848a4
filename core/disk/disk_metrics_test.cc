// What the disk tier counts: operations, failures, bytes.
#include "core/disk/disk_metrics.h"

#include <cerrno>
#include <filesystem>

#include "core/disk/artifact_store.h"
#include "core/disk/packed_format.h"
#include "core/disk/test_util.h"
#include "gtest/gtest.h"
#include "otel/api/testing/recorded_telemetry.h"

namespace tensorcast::disk_metrics_test {
namespace {

namespace metrics = otel::metrics;
using otel::testing::RecordedTelemetry;

constexpr uint64_t kImageBytes = 8192;
constexpr uint64_t kManifestMax = 10'000;

class DiskMetrics : public ::testing::Test {
 protected:
  std::shared_ptr<ArtifactStore> Open() {
    auto store = ArtifactStore::Open(folder_.path());
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  std::shared_ptr<PackedFile> Pack(ArtifactStore& store) {
    auto writer = store.Create(OneTensorLayout(kImageBytes), kManifestMax);
    EXPECT_TRUE(writer.ok()) << writer.status();
    const ConstHostSpan span = std::as_bytes(std::span(image_));
    EXPECT_TRUE((*writer)->Write(0, {&span, 1}).ok());
    auto file = (*writer)->Commit(ManifestOf(image_));
    EXPECT_TRUE(file.ok()) << file.status();
    return *file;
  }
  absl::Status Read(ChunkSource& source) {
    AlignedMemory memory(kImageBytes);
    const HostSpan destination = memory.span();
    return source
        .Fetch(RequestContext(), {.chunk = 0, .range = {0, kImageBytes}, .destination = {&destination, 1}})
        .status();
  }
  uint64_t Times(const char* operation) const {
    return recorded_.Count(metrics::kDiskOperationSeconds.id(), {operation});
  }
  double Errors(const char* operation) const { return recorded_.Sum(metrics::kDiskErrors.id(), {operation}); }

  TestFolder folder_;
  const std::string image_ = Pattern(kImageBytes, 1);
  RecordedTelemetry recorded_;
};

TEST_F(DiskMetrics, DiskMetrics_CountOperationsAndBytesOfPackedFiles) {
  const auto store = Open();
  EXPECT_EQ(Times("scan"), 1);
  EXPECT_EQ(store->Usage().used_bytes, 0);
  const auto file = Pack(*store);
  EXPECT_EQ(Times("pack"), 1);
  EXPECT_EQ(recorded_.Sum(metrics::kDiskWrittenBytes.id(), {"packed"}), kImageBytes);
  EXPECT_EQ(store->Usage().used_bytes, std::filesystem::file_size(file->path()));
  EXPECT_GT(store->Usage().free_bytes, 0);

  auto source = OpenPackedSource({.name = "packed"}, file->fd(), file->image_offset(), kImageBytes, file);
  ASSERT_TRUE(source.ok()) << source.status();
  ASSERT_TRUE(Read(**source).ok());
  EXPECT_EQ(Times("read"), 1);
  EXPECT_EQ(recorded_.Sum(metrics::kDiskReadBytes.id(), {"packed"}), kImageBytes);

  ASSERT_TRUE(store->Remove(file->manifest()->id()).ok());
  EXPECT_EQ(Times("remove"), 1);
  EXPECT_TRUE(absl::IsNotFound(store->Remove(file->manifest()->id())));
  EXPECT_EQ(Times("remove"), 1) << "there was nothing to do";
  for (const char* operation : {"scan", "pack", "read", "remove"}) {
    EXPECT_EQ(Errors(operation), 0) << operation;
  }
}

TEST_F(DiskMetrics, DiskMetrics_CountReadsOfImportedFilesAsOrigin) {
  const std::string path = folder_.File("model");
  WriteFile(path, image_);
  auto source = MakeObjectSource(Opened({IdentityOf(path)}), {{0, 0, 0, kImageBytes}}, kImageBytes);
  ASSERT_TRUE(source.ok()) << source.status();
  ASSERT_TRUE(Read(**source).ok());
  EXPECT_EQ(recorded_.Sum(metrics::kDiskReadBytes.id(), {"origin"}), kImageBytes);
}

TEST_F(DiskMetrics, DiskMetrics_CountDiskErrorsButNotAbandonedWrites) {
  auto store = Open();
  EXPECT_FALSE(store->Create(OneTensorLayout(uint64_t{1} << 50), kManifestMax).ok()) << "a petabyte";
  EXPECT_EQ(Errors("pack"), 1);
  {
    auto given_up = store->Create(OneTensorLayout(kImageBytes), kManifestMax);
  }
  EXPECT_EQ(Errors("pack"), 1);

  const std::string path = folder_.File("model");
  WriteFile(path, image_);
  FakeFileIo io;
  io.on_read = [](bool, HostSpan, uint64_t) -> std::optional<ssize_t> {
    errno = EIO;
    return -1;
  };
  DropFromPageCache(path);
  auto source =
      MakeObjectSource(Opened({IdentityOf(path)}, {.io = &io}), {{0, 0, 0, kImageBytes}}, kImageBytes);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_FALSE(Read(**source).ok());
  EXPECT_EQ(Errors("read"), 1);
  EXPECT_EQ(Times("read"), 0);

  WriteFile(folder_.File(PackedFileName(Pack(*store)->manifest()->id())), "short");
  store.reset();
  Open();
  EXPECT_EQ(Errors("scan"), 1);
}

}  // namespace
}  // namespace tensorcast::disk_metrics_test
