#include "core/disk/test_util.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "absl/log/check.h"
#include "base/posix/unique_fd.h"
#include "core/artifact/test_util.h"

namespace tensorcast {

std::string Pattern(uint64_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::string pattern(bytes, '\0');
  for (size_t i = 0; i < bytes; i += 4) {
    const uint32_t word = random();
    for (size_t j = i; j < std::min<size_t>(i + 4, bytes); ++j) {
      pattern[j] = static_cast<char>(word >> (8 * (j - i)));
    }
  }
  return pattern;
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  CHECK(file.flush()) << path;
}

ObjectIdentity IdentityOf(const std::string& path) {
  struct stat info;
  CHECK_EQ(stat(path.c_str(), &info), 0) << path;
  return IdentityOf(path, info);
}

ObjectReaders Opened(const std::vector<ObjectIdentity>& files, const FileReaderOptions& options) {
  ObjectReaders opened;
  for (const ObjectIdentity& file : files) {
    auto reader = FileReader::Of(file.uri, UniqueFd(open(file.uri.c_str(), O_RDONLY | O_CLOEXEC)), options);
    CHECK_OK(reader.status());
    opened.push_back(*std::move(reader));
  }
  return opened;
}

void DropFromPageCache(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  CHECK_EQ(fsync(fd.get()), 0);  // dirty pages stay
  CHECK_EQ(posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
}

void ReadIntoPageCache(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char buffer[1 << 16];
  while (file.read(buffer, sizeof(buffer))) {
  }
}

ImageLayout OneTensorLayout(uint64_t image_bytes) {
  ImageLayout layout;
  layout.tensors.push_back({.name = "t", .dtype = DType::kU8, .shape = {image_bytes}, .nbytes = image_bytes});
  CHECK_OK(AssignOffsets(layout));
  CHECK_EQ(layout.image_bytes, image_bytes);
  return layout;
}

std::shared_ptr<const Manifest> ManifestOf(const std::string& image) {
  ImageLayout layout = OneTensorLayout(image.size());
  std::vector<ChunkDigests> digests = testing::DigestsOf(layout, std::as_bytes(std::span(image)));
  auto manifest = Manifest::Create(std::move(layout), std::move(digests), {});
  CHECK_OK(manifest.status());
  return *manifest;
}

ssize_t FakeFileIo::Read(int fd, HostSpan destination, uint64_t offset) {
  const bool direct = (fcntl(fd, F_GETFL) & O_DIRECT) != 0;
  ++(direct ? direct_reads : buffered_reads);
  if (on_read) {
    if (const auto result = on_read(direct, destination, offset)) return *result;
  }
  return FileIo::System()->Read(fd, destination, offset);
}

ssize_t FakeFileIo::ReadCached(int fd, HostSpan destination, uint64_t offset) {
  ++cached_reads;
  return FileIo::System()->ReadCached(fd, destination, offset);
}

int FakeFileIo::Stat(int fd, struct stat* info) {
  const int result = FileIo::System()->Stat(fd, info);
  if (on_stat) on_stat(info);
  return result;
}

}  // namespace tensorcast
