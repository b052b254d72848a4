#include "core/disk/file_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <random>
#include <thread>

#include "base/posix/unique_fd.h"
#include "core/disk/packed_format.h"
#include "core/disk/test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::disk_source_test {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
const FileReaderOptions kSmallReads{.max_concurrency = 4, .read_bytes = 128 * kKiB};

absl::StatusOr<std::optional<ChunkDigests>> Fetch(ChunkSource& source, ByteRange range,
                                                  std::vector<HostSpan> destination) {
  return source.Fetch(RequestContext::Background(absl::Minutes(1)), {0, range, destination, /*blake3=*/true});
}

// A file of its own for each test, cold unless told otherwise.
class Disk : public ::testing::Test {
 protected:
  ObjectIdentity Make(const std::string& name, const std::string& bytes) {
    WriteFile(folder_.File(name), bytes);
    DropFromPageCache(folder_.File(name));
    return IdentityOf(folder_.File(name));
  }
  std::unique_ptr<ChunkSource> Open(const std::vector<ObjectIdentity>& files,
                                    std::vector<ObjectExtent> extents, uint64_t image_bytes) {
    auto source = MakeObjectSource(Opened(files, Small()), std::move(extents), image_bytes);
    EXPECT_TRUE(source.ok()) << source.status();
    return *std::move(source);
  }
  FileReaderOptions Small() {
    FileReaderOptions options = kSmallReads;
    options.io = &io_;
    return options;
  }
  // A file that holds the image's bytes and no others.
  std::unique_ptr<ChunkSource> OpenWhole(const ObjectIdentity& file) {
    return Open({file}, {{0, 0, 0, file.bytes}}, file.bytes);
  }
  // Fetches into memory of its own and checks bytes and digest.
  void ExpectFetches(ChunkSource& source, ByteRange range, std::string_view image) {
    AlignedMemory memory(range.bytes);
    const auto digest = Fetch(source, range, {memory.span()});
    ASSERT_TRUE(digest.ok()) << digest.status();
    EXPECT_TRUE(memory.text() == image.substr(range.offset, range.bytes))
        << range.offset << " + " << range.bytes;
    ASSERT_TRUE(digest->has_value());
    const auto expected = std::as_bytes(std::span(image.substr(range.offset, range.bytes)));
    EXPECT_EQ(**digest, (ChunkDigests{.xxh3 = ComputeDigest(expected), .blake3 = ComputeBlake3(expected)}));
  }

  TestFolder folder_;
  FakeFileIo io_;
};

TEST_F(Disk, AlignedFile_IsReadWithDirectIo) {
  const std::string bytes = Pattern(kMiB, 1);
  const ObjectIdentity file = Make("f", bytes);
  const auto source = OpenWhole(file);
  EXPECT_EQ(source->info().lane, "disk");
  EXPECT_EQ(source->info().name, file.uri);
  ExpectFetches(*source, {0, kMiB}, bytes);
  EXPECT_EQ(io_.direct_reads, 8) << "one for each 128 KiB";
  EXPECT_EQ(io_.buffered_reads, 0);
  EXPECT_EQ(io_.cached_reads, 0);
}

TEST_F(Disk, CachedFile_IsReadFromPageCache) {
  const std::string bytes = Pattern(kMiB + 100, 2);
  const ObjectIdentity file = Make("f", bytes);
  ReadIntoPageCache(file.uri);
  const auto source = OpenWhole(file);
  ExpectFetches(*source, {0, kMiB}, bytes);
  EXPECT_GT(io_.cached_reads, 0);
  EXPECT_EQ(io_.direct_reads, 0);
}

TEST_F(Disk, UnalignedExtentsOfSeveralFiles_MakeImageWithZeroGaps) {
  std::mt19937 random(3);
  std::vector<std::string> contents;
  std::vector<ObjectIdentity> files;
  for (int i = 0; i < 3; ++i) {
    contents.push_back(Pattern(600 * kKiB + 123 * i, 10 + i));
    files.push_back(Make("f" + std::to_string(i), contents.back()));
  }
  std::string image(2 * kMiB, '\0');
  std::vector<ObjectExtent> extents;
  for (uint64_t at = 0; at < image.size();) {
    const uint32_t file = random() % 3;
    const uint64_t max = random() % 4 == 0 ? 300 * kKiB : 3000;  // some are worth a read of their own
    const uint64_t bytes = std::min<uint64_t>(1 + random() % max, image.size() - at);
    const uint64_t object_offset = random() % (contents[file].size() - bytes);
    extents.push_back({file, object_offset, at, bytes});
    image.replace(at, bytes, contents[file], object_offset, bytes);
    at = (at + bytes + 255) / 256 * 256;
  }
  const auto source = Open(files, extents, image.size());
  ExpectFetches(*source, {0, image.size()}, image);
  for (int i = 0; i < 20; ++i) {
    const uint64_t offset = random() % image.size();
    ExpectFetches(*source, {offset, 1 + random() % (image.size() - offset)}, image);
  }
  EXPECT_EQ(io_.buffered_reads, 0) << "what is not aligned is read in the aligned superset";
}

TEST_F(Disk, AdjacentTensors_ShareReads) {
  // As safetensors packs them: one after the other in the file, each at a 256-byte boundary in the image.
  const std::string bytes = Pattern(512 * kKiB, 4);
  const ObjectIdentity file = Make("f", bytes);
  std::vector<ObjectExtent> extents;
  std::string image;
  for (uint64_t at = 77; at + 1000 <= bytes.size(); at += 1000) {
    extents.push_back({0, at, image.size(), 1000});
    image += bytes.substr(at, 1000) + std::string(24, '\0');
  }
  const auto source = Open({file}, extents, image.size());
  ExpectFetches(*source, {0, image.size()}, image);
  EXPECT_LE(io_.direct_reads, 6) << "for " << extents.size() << " tensors";
}

TEST_F(Disk, FetchIntoSeveralSpans_FillsThemInOrder) {
  const std::string bytes = Pattern(kMiB, 5);
  const auto source = OpenWhole(Make("f", bytes));
  AlignedMemory first(512 * kKiB), second(1000), third(kMiB);
  const uint64_t total = first.bytes + second.bytes + 300 * kKiB;
  const auto digest =
      Fetch(*source, {4096, total}, {first.span(), second.span(), HostSpan(), third.span(8, 300 * kKiB)});
  ASSERT_TRUE(digest.ok()) << digest.status();
  EXPECT_EQ((*digest)->xxh3, ComputeDigest(std::as_bytes(std::span(bytes)).subspan(4096, total)));
  EXPECT_TRUE(first.text() == bytes.substr(4096, first.bytes));
  EXPECT_EQ(second.text(), bytes.substr(4096 + first.bytes, 1000));
  EXPECT_TRUE(third.text().substr(8, 300 * kKiB) == bytes.substr(4096 + first.bytes + 1000, 300 * kKiB));
}

TEST_F(Disk, ConcurrentFetches_ReturnTheirRanges) {
  const std::string bytes = Pattern(4 * kMiB, 6);
  const ObjectIdentity file = Make("f", std::string(100, 'h') + bytes);
  const auto source = Open({file}, {{0, 100, 0, bytes.size()}}, bytes.size());
  EXPECT_EQ(source->max_concurrency(), 4);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] { ExpectFetches(*source, {i * kMiB / 2, kMiB / 2}, bytes); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Disk, ShortReads_AreContinued) {
  const std::string bytes = Pattern(300 * kKiB + 5, 7);
  const ObjectIdentity file = Make("f", std::string(3, 'h') + bytes);
  std::mt19937 random(1);
  io_.on_read = [&](bool direct, HostSpan destination, uint64_t offset) -> std::optional<ssize_t> {
    if (random() % 5 == 0) {
      errno = EINTR;
      return -1;
    }
    const uint64_t max = direct && random() % 2 == 0 ? 4096 : 1 + random() % 9000;  // at times in mid-block
    const std::string whole = std::string(3, 'h') + bytes;
    const uint64_t size = std::min<uint64_t>({max, destination.size(), whole.size() - offset});
    std::copy_n(std::as_bytes(std::span(whole)).begin() + offset, size, destination.begin());
    return size;
  };
  const auto source = Open({file}, {{0, 3, 0, bytes.size()}}, bytes.size());
  ExpectFetches(*source, {0, bytes.size()}, bytes);
  EXPECT_GT(io_.buffered_reads, 0) << "what ends in mid-block is continued without direct I/O";
}

TEST_F(Disk, RefusedDirectRead_FallsBackToBufferedReads) {
  const std::string bytes = Pattern(512 * kKiB, 8);
  const ObjectIdentity file = Make("f", bytes);
  io_.on_read = [](bool direct, HostSpan, uint64_t) -> std::optional<ssize_t> {
    if (!direct) return std::nullopt;
    errno = EINVAL;
    return -1;
  };
  const auto source = OpenWhole(file);
  ExpectFetches(*source, {0, bytes.size()}, bytes);
  EXPECT_EQ(io_.direct_reads, 1) << "it is not asked again";
}

TEST_F(Disk, MemoryFile_IsReadThroughItsDescriptor) {
  const std::string bytes = Pattern(300 * kKiB + 1, 9);
  const UniqueFd fd(memfd_create("packed", MFD_CLOEXEC));
  ASSERT_EQ(pwrite(fd.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  const auto source = OpenPackedSource({.name = "memory"}, fd.get(), 0, bytes.size(), nullptr, kSmallReads);
  ASSERT_TRUE(source.ok()) << source.status();
  ExpectFetches(**source, {0, bytes.size()}, bytes);
}

TEST_F(Disk, ReadError_IsDataLossWithPathAndOffset) {
  const ObjectIdentity file = Make("f", Pattern(512 * kKiB, 10));
  io_.on_read = [](bool, HostSpan, uint64_t offset) -> std::optional<ssize_t> {
    if (offset < 256 * kKiB) return std::nullopt;
    errno = EIO;
    return -1;
  };
  const auto source = OpenWhole(file);
  AlignedMemory memory(file.bytes);
  const absl::Status status = Fetch(*source, {0, file.bytes}, {memory.span()}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr(file.uri));
  EXPECT_THAT(status.message(), HasSubstr("262144"));
}

TEST_F(Disk, UnreachableMount_IsUnavailable) {
  const ObjectIdentity file = Make("f", Pattern(256 * kKiB, 12));
  const auto source = OpenWhole(file);
  AlignedMemory memory(file.bytes);
  for (const int error : {ESTALE, ENOTCONN, ENODEV, ENXIO, ETIMEDOUT}) {
    io_.on_read = [error](bool, HostSpan, uint64_t) -> std::optional<ssize_t> {
      errno = error;
      return -1;
    };
    const absl::Status status = Fetch(*source, {0, file.bytes}, {memory.span()}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  }
}

TEST_F(Disk, TruncatedFile_IsDataLossOrFailedPrecondition) {
  const ObjectIdentity file = Make("f", Pattern(256 * kKiB, 11));
  const auto source = OpenWhole(file);
  AlignedMemory memory(file.bytes);
  io_.on_read = [](bool, HostSpan, uint64_t offset) -> std::optional<ssize_t> {
    if (offset >= 128 * kKiB) return 0;
    return std::nullopt;
  };
  EXPECT_EQ(Fetch(*source, {0, file.bytes}, {memory.span()}).status().code(), absl::StatusCode::kDataLoss);
  io_.on_read = nullptr;
  std::filesystem::resize_file(file.uri, 1000);
  EXPECT_EQ(Fetch(*source, {0, file.bytes}, {memory.span()}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(Disk, FileChangedDuringRead_IsRefused) {
  const ObjectIdentity file = Make("f", Pattern(256 * kKiB, 12));
  const auto source = OpenWhole(file);
  AlignedMemory memory(file.bytes);
  ASSERT_TRUE(Fetch(*source, {0, file.bytes}, {memory.span()}).ok());
  int reads = 0;
  io_.on_read = [&](bool, HostSpan, uint64_t) -> std::optional<ssize_t> {
    if (++reads == 2) {  // in the middle
      const timespec times[2] = {{0, UTIME_OMIT},
                                 {FileVersion::Parse(file.version)->mtime_ns / 1'000'000'000 + 1, 0}};
      EXPECT_EQ(utimensat(AT_FDCWD, file.uri.c_str(), times, 0), 0);
    }
    return std::nullopt;
  };
  DropFromPageCache(file.uri);
  const absl::Status status = Fetch(*source, {0, file.bytes}, {memory.span()}).status();
  EXPECT_EQ(reads, 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("changed while it was read"));
  EXPECT_THAT(status.message(), HasSubstr(file.uri));
}

TEST_F(Disk, RemovedPackedFile_IsReadThroughItsDescriptor) {
  const std::string image = Pattern(kMiB + 256, 13);
  const ObjectIdentity file =
      Make("f", std::string(8192, 'h') + image + std::string(AlignUp(256) - 256, '\0'));
  UniqueFd fd(open(file.uri.c_str(), O_RDONLY | O_CLOEXEC));
  std::filesystem::remove(file.uri);
  auto keep_alive = std::make_shared<UniqueFd>(std::move(fd));
  const std::weak_ptr<UniqueFd> kept = keep_alive;
  const int raw = keep_alive->get();
  auto source = OpenPackedSource({.name = "packed"}, raw, 8192, image.size(), std::move(keep_alive), Small());
  ASSERT_TRUE(source.ok()) << source.status();
  ExpectFetches(**source, {0, image.size()}, image);
  EXPECT_GT(io_.direct_reads, 0);
  EXPECT_FALSE(kept.expired());
  source->reset();
  EXPECT_TRUE(kept.expired());
}

TEST_F(Disk, PackedFileShorterThanImage_IsRefused) {
  const ObjectIdentity file = Make("f", Pattern(8192, 14));
  const UniqueFd fd(open(file.uri.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(OpenPackedSource({.name = "p"}, fd.get(), 4096, 4097, nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(OpenPackedSource({.name = "p"}, fd.get(), 4096, 4096, nullptr).ok());
}

TEST_F(Disk, Fetch_RefusesRangeOutsideImageAndWrongDestinationSize) {
  const auto source = OpenWhole(Make("f", Pattern(8192, 15)));
  AlignedMemory memory(4096);
  EXPECT_EQ(Fetch(*source, {8000, 4096}, {memory.span()}).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Fetch(*source, {~uint64_t{0}, 4096}, {memory.span()}).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Fetch(*source, {0, 4097}, {memory.span()}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Fetch(*source, {0, 4095}, {memory.span()}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(Disk, CancelledFetch_StopsBetweenReads) {
  const ObjectIdentity file = Make("f", Pattern(kMiB, 16));
  const auto source = OpenWhole(file);
  const RequestContext context = RequestContext::Background(absl::Minutes(1));
  io_.on_read = [&](bool, HostSpan, uint64_t) -> std::optional<ssize_t> {
    context.cancellation.Cancel();
    return std::nullopt;
  };
  AlignedMemory memory(kMiB);
  const HostSpan destination = memory.span();
  EXPECT_EQ(source->Fetch(context, {0, {0, kMiB}, {&destination, 1}}).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(io_.direct_reads, 1);
}

}  // namespace
}  // namespace tensorcast::disk_source_test
