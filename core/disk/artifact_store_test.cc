#include "core/disk/artifact_store.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <thread>

#include "core/disk/packed_format.h"
#include "core/disk/packed_writer.h"
#include "core/disk/test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

// The entries of folders that can still be read; negative: all.
std::atomic<int> readable_entries = -1;

}  // namespace

// In this program, also for the standard library: a folder that fails while it is read, as on a damaged disk.
extern "C" dirent* readdir(DIR* folder) {
  static auto* const real = reinterpret_cast<dirent* (*)(DIR*)>(dlsym(RTLD_NEXT, "readdir"));
  if (readable_entries == 0) {
    errno = EIO;
    return nullptr;
  }
  if (readable_entries > 0) --readable_entries;
  return real(folder);
}

namespace tensorcast::artifact_store_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kImageBytes = (uint64_t{40} << 20) + 256;  // three chunks, the end unaligned
constexpr uint64_t kManifestMax = 10'000;

ConstHostSpan Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string ImageIn(const PackedFile& file, uint64_t bytes) {
  std::string image(bytes, '\0');
  EXPECT_EQ(pread(file.fd(), image.data(), bytes, static_cast<off_t>(file.image_offset())),
            static_cast<ssize_t>(bytes));
  return image;
}

class DiskTier : public ::testing::Test {
 protected:
  std::shared_ptr<ArtifactStore> Open() {
    auto store = ArtifactStore::Open(folder_.path());
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  std::unique_ptr<PackedWriter> Create(ArtifactStore& store, uint64_t image_bytes) {
    auto writer = store.Create(OneTensorLayout(image_bytes), kManifestMax);
    EXPECT_TRUE(writer.ok()) << writer.status();
    return *std::move(writer);
  }
  std::shared_ptr<PackedFile> Pack(ArtifactStore& store, const std::string& image) {
    auto writer = Create(store, image.size());
    const ConstHostSpan span = Bytes(image);
    EXPECT_TRUE(writer->Write(0, {&span, 1}).ok());
    auto file = writer->Commit(ManifestOf(image));
    EXPECT_TRUE(file.ok()) << file.status();
    return *file;
  }

  TestFolder folder_;
};

TEST(ArtifactStore, OpenArtifactStore_RefusesFolderInUseByAnyPath) {
  const TestFolder folder;
  auto store = ArtifactStore::Open(folder.File("packed"));
  ASSERT_TRUE(store.ok()) << store.status();
  std::filesystem::create_directory_symlink(folder.File("packed"), folder.File("link"));
  for (const char* name : {"packed", "link"}) {
    const absl::Status second = ArtifactStore::Open(folder.File(name)).status();
    EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition) << name;
    EXPECT_THAT(second.message(), ::testing::HasSubstr(folder.File(name)));
  }
  store->reset();
  EXPECT_TRUE(ArtifactStore::Open(folder.File("packed")).ok());
}

TEST_F(DiskTier, PackedArtifact_IsFoundAfterReopen) {
  const std::string image = Pattern(kImageBytes, 1);
  const auto manifest = ManifestOf(image);
  Pack(*Open(), image);

  const auto store = Open();
  ASSERT_EQ(store->List().size(), 1u);
  const auto file = store->Find(manifest->id());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->manifest()->bytes(), manifest->bytes());
  EXPECT_EQ((*file)->image_offset() % 4096, 0u);
  EXPECT_EQ(ImageIn(**file, kImageBytes), image);
  EXPECT_EQ(std::filesystem::file_size((*file)->path()), (*file)->image_offset() + AlignUp(kImageBytes));
  EXPECT_EQ(fcntl((*file)->fd(), F_GETFL) & O_ACCMODE, O_RDONLY);
}

TEST_F(DiskTier, WritesOfAnyAlignmentFromManyThreads_MakeTheSameFile) {
  const std::string image = Pattern(kImageBytes, 2);
  AlignedMemory memory(kImageBytes);
  std::copy(image.begin(), image.end(), reinterpret_cast<char*>(memory.buffer.get()));
  const auto store = Open();
  const auto writer = Create(*store, kImageBytes);
  const auto write = [&](uint64_t offset, std::vector<uint64_t> cuts) {
    std::vector<ConstHostSpan> spans;
    uint64_t at = offset;
    for (const uint64_t bytes : cuts) {
      spans.push_back(memory.span(at, bytes));
      at += bytes;
    }
    EXPECT_TRUE(writer->Write(offset, spans).ok());
  };
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  std::vector<std::thread> threads;
  threads.emplace_back([&] { write(0, {4 * kMiB, 0, 12 * kMiB}); });                 // aligned throughout
  threads.emplace_back([&] { write(16 * kMiB, {kMiB + 100, 4096, kMiB - 4196}); });  // not after the first
  threads.emplace_back([&] { write(18 * kMiB, {777}); });                            // small
  threads.emplace_back([&] { write(18 * kMiB + 777, {14 * kMiB - 777}); });          // begins unaligned
  threads.emplace_back([&] { write(32 * kMiB, {8 * kMiB, 256}); });                  // the end
  for (std::thread& thread : threads) thread.join();
  const auto file = writer->Commit(ManifestOf(image));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(ImageIn(**file, kImageBytes) == image);
}

TEST_F(DiskTier, EmptyImage_IsPacked) {
  ImageLayout layout;
  const auto manifest = Manifest::Create(layout, {}, {{"a", "b"}});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  {
    const auto store = Open();
    auto writer = store->Create(layout, (*manifest)->bytes().size());
    ASSERT_TRUE(writer.ok()) << writer.status();
    EXPECT_TRUE((*writer)->Commit(*manifest).ok());
  }
  EXPECT_TRUE(Open()->Find((*manifest)->id()).ok());
}

TEST_F(DiskTier, WriterWithoutCommit_LeavesNoFile) {
  const auto store = Open();
  auto writer = Create(*store, 4096);
  EXPECT_EQ(folder_.Names().size(), 1u);
  const std::string image = Pattern(4096, 3);
  const ConstHostSpan span = Bytes(image);
  EXPECT_TRUE(writer->Write(0, {&span, 1}).ok());
  EXPECT_THAT(store->List(), IsEmpty());
  writer.reset();
  EXPECT_THAT(folder_.Names(), IsEmpty());
}

TEST_F(DiskTier, RemoveAbandonedPartials_KeepsFilesOfLivingWriters) {
  const auto store = Open();
  const auto living = Create(*store, 4096);
  const std::vector<std::string> living_names = folder_.Names();
  const pid_t child = fork();
  if (child == 0) {
    auto dying = store->Create(OneTensorLayout(8192), kManifestMax);
    _exit(dying.ok() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);
  ASSERT_EQ(folder_.Names().size(), 2u);
  RemoveAbandonedPartials(folder_.path());
  EXPECT_EQ(folder_.Names(), living_names);
}

TEST_F(DiskTier, Commit_RefusesImageThatIsNotWrittenWhole) {
  const std::string image = Pattern(8192, 4);
  const auto store = Open();
  auto writer = Create(*store, image.size());
  const ConstHostSpan span = Bytes(image).first(4096);
  EXPECT_TRUE(writer->Write(0, {&span, 1}).ok());
  EXPECT_EQ(writer->Commit(ManifestOf(image)).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(store->List(), IsEmpty());
}

TEST_F(DiskTier, Commit_RefusesManifestOfOtherImageOrTooLarge) {
  const std::string image = Pattern(4096, 5);
  const auto store = Open();
  const ConstHostSpan span = Bytes(image);
  auto other = Create(*store, image.size());
  EXPECT_TRUE(other->Write(0, {&span, 1}).ok());
  EXPECT_EQ(other->Commit(ManifestOf(Pattern(8192, 5))).status().code(), absl::StatusCode::kInvalidArgument)
      << "of another image";

  ImageLayout layout = OneTensorLayout(image.size());
  auto small = store->Create(layout, 100);
  ASSERT_TRUE(small.ok());
  EXPECT_TRUE((*small)->Write(0, {&span, 1}).ok());
  const auto large = Manifest::Create(layout, {{.xxh3 = ComputeDigest(span), .blake3 = ComputeBlake3(span)}},
                                      {{"key", std::string(5000, 'v')}});
  EXPECT_EQ((*small)->Commit(*large).status().code(), absl::StatusCode::kInvalidArgument) << "too large";
}

TEST_F(DiskTier, Write_RefusesRangePastTheImage) {
  const auto store = Open();
  const auto writer = Create(*store, 4096);
  const std::string bytes(4096, 'x');
  const ConstHostSpan span = Bytes(bytes);
  EXPECT_EQ(writer->Write(256, {&span, 1}).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(writer->Write(~uint64_t{0}, {&span, 1}).code(), absl::StatusCode::kOutOfRange);
}

TEST_F(DiskTier, FullDisk_ErrorSaysFolderAndNeededBytes) {
  const auto store = Open();
  ImageLayout layout = OneTensorLayout(uint64_t{1} << 50);  // a petabyte
  const absl::Status status = store->Create(layout, kManifestMax).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(status.message(), HasSubstr(folder_.path()));
  EXPECT_THAT(status.message(), HasSubstr("needs 1125899906"));
  EXPECT_THAT(folder_.Names(), IsEmpty());
}

TEST_F(DiskTier, PackingArtifactTwice_KeepsOneFile) {
  const std::string image = Pattern(4096, 6);
  const auto store = Open();
  const auto first = Pack(*store, image);
  const auto second = Pack(*store, image);
  EXPECT_EQ(store->List().size(), 1u);
  EXPECT_THAT(folder_.Names(), ElementsAre(PackedFileName(ManifestOf(image)->id())));
  EXPECT_EQ(ImageIn(*first, image.size()), image)
      << "the file that was replaced is still readable by its holders";
}

TEST_F(DiskTier, RemovedArtifact_IsGoneAndStillReadableByItsHolders) {
  const std::string image = Pattern(4096, 7);
  const auto store = Open();
  const auto file = Pack(*store, image);
  const std::string id = file->manifest()->id();
  EXPECT_TRUE(store->Remove(id).ok());
  EXPECT_THAT(folder_.Names(), IsEmpty());
  EXPECT_EQ(store->Find(id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store->Remove(id).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ImageIn(*file, image.size()), image);
}

TEST_F(DiskTier, Writer_CommitsAfterItsStoreIsDestroyed) {
  const std::string image = Pattern(4096, 8);
  auto store = Open();
  auto writer = Create(*store, image.size());
  store.reset();
  const ConstHostSpan span = Bytes(image);
  EXPECT_TRUE(writer->Write(0, {&span, 1}).ok());
  EXPECT_TRUE(writer->Commit(ManifestOf(image)).ok());
}

TEST_F(DiskTier, DamagedAndForeignFiles_AreKeptButNotListed) {
  const std::string image = Pattern(4096, 9);
  const std::string path = Pack(*Open(), image)->path();
  const auto damaged_by = [&](uint64_t at, char byte) {
    const UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
    char before;
    EXPECT_EQ(pread(fd.get(), &before, 1, at), 1);
    EXPECT_EQ(pwrite(fd.get(), &byte, 1, at), 1);
    const bool gone = Open()->List().empty();
    EXPECT_TRUE(std::filesystem::exists(path));
    EXPECT_EQ(pwrite(fd.get(), &before, 1, at), 1);
    return gone;
  };
  EXPECT_TRUE(damaged_by(0, 'X')) << "magic";
  EXPECT_TRUE(damaged_by(33, 'X')) << "header";
  EXPECT_TRUE(damaged_by(4096 + 20, '\xee')) << "manifest";
  EXPECT_EQ(Open()->List().size(), 1u) << "whole again";

  WriteFile(folder_.File("notes.txt"), "mine");
  WriteFile(folder_.File(PackedFileName(ArtifactId("other"))), "short");
  std::filesystem::copy_file(path, folder_.File(PackedFileName(ArtifactId("renamed"))));
  std::filesystem::create_directory(folder_.File(PackedFileName(ArtifactId("folder"))));
  EXPECT_EQ(Open()->List().size(), 1u);
  EXPECT_EQ(folder_.Names().size(), 5u);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_THAT(Open()->List(), IsEmpty()) << "truncated";
}

TEST_F(DiskTier, DamagedFile_IsListedUntilRewrittenOrRemoved) {
  const std::string image = Pattern(4096, 9);
  const std::string path = Pack(*Open(), image)->path();
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  const auto store = Open();
  const std::vector<DamagedFile> damaged = store->Damaged();
  ASSERT_EQ(damaged.size(), 1u);
  EXPECT_EQ(damaged[0].path, path);
  EXPECT_EQ(damaged[0].artifact_id, ManifestOf(image)->id());
  EXPECT_FALSE(damaged[0].error.ok());
  Pack(*store, image);
  EXPECT_THAT(store->Damaged(), IsEmpty()) << "written again";

  store->NoteDamaged(ManifestOf(image)->id(), absl::DataLossError("wrong bytes"));
  EXPECT_EQ(store->Damaged().size(), 1u);
  ASSERT_TRUE(store->Remove(ManifestOf(image)->id()).ok());
  EXPECT_THAT(store->Damaged(), IsEmpty()) << "removed";
}

TEST_F(DiskTier, DamagedFile_IsForgottenWhenItOrItsArtifactIsRemoved) {
  const std::string image = Pattern(4096, 9);
  const std::string artifact_id = ManifestOf(image)->id();
  const auto open_on_damaged = [&] {
    const std::string path = Pack(*Open(), image)->path();
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
    return Open();
  };
  auto store = open_on_damaged();
  EXPECT_TRUE(store->Remove(artifact_id).ok());
  EXPECT_THAT(store->Damaged(), IsEmpty());
  EXPECT_THAT(folder_.Names(), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(store->Remove(artifact_id)));
  store.reset();

  store = open_on_damaged();
  store->ForgetRemovedDamage();
  ASSERT_EQ(store->Damaged().size(), 1u) << "it is still there";
  std::filesystem::remove(store->Damaged()[0].path);
  store->ForgetRemovedDamage();
  EXPECT_THAT(store->Damaged(), IsEmpty());
  store.reset();

  std::filesystem::create_directory(folder_.File(PackedFileName(artifact_id)));
  store = Open();
  EXPECT_TRUE(absl::IsNotFound(store->Remove(artifact_id))) << "it is not a file of ours";
  EXPECT_EQ(store->Damaged().size(), 1u);
}

TEST_F(DiskTier, FolderThatFailsWhileItIsRead_EndsTheScanAlone) {
  for (const uint32_t seed : {10, 11, 12, 13}) Pack(*Open(), Pattern(4096, seed));
  // The folder is read twice: for partial files, and for packed ones. "." and ".." count.
  for (const int entries : {3, 9}) {
    readable_entries = entries;
    const auto store = Open();
    readable_entries = -1;
    EXPECT_LT(store->List().size(), 4u);
  }
  EXPECT_EQ(Open()->List().size(), 4u);
}

TEST_F(DiskTier, CommitWithoutDescriptor_LeavesNoFile) {
  const std::string image = Pattern(4096, 14);
  const auto store = Open();
  auto writer = Create(*store, image.size());
  const ConstHostSpan span = Bytes(image);
  ASSERT_TRUE(writer->Write(0, {&span, 1}).ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int free = dup(STDOUT_FILENO);
  close(free);
  const rlimit none{.rlim_cur = static_cast<rlim_t>(free), .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status refused = writer->Commit(ManifestOf(image)).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  writer.reset();
  EXPECT_THAT(folder_.Names(), IsEmpty());
  EXPECT_EQ(Pack(*store, image)->manifest()->id(), ManifestOf(image)->id());
}

TEST_F(DiskTier, OpenArtifactStore_FailsWhenFolderCannotBeMade) {
  WriteFile(folder_.File("file"), "x");
  EXPECT_FALSE(ArtifactStore::Open(folder_.File("file/inside")).ok());
  EXPECT_FALSE(ArtifactStore::Open(folder_.File("file")).ok());
  EXPECT_TRUE(ArtifactStore::Open(folder_.File("a/b/c")).ok());
}

}  // namespace
}  // namespace tensorcast::artifact_store_test
