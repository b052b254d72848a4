// Helpers that this folder's tests share.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/testing/temp_folder.h"
#include "core/artifact/manifest.h"
#include "core/disk/artifact_store.h"
#include "core/disk/file_io.h"
#include "core/disk/file_reader.h"
#include "core/disk/packed_source.h"
#include "core/source/bounce_buffers.h"
#include "core/source/object_source.h"

namespace tensorcast {

// In the working folder, because the default temporary folder may be in memory.
struct TestFolder : testing::TempFolder {
  TestFolder() : TempFolder(".") {}
};

// Bytes that differ from place to place and with the seed.
std::string Pattern(uint64_t bytes, uint32_t seed);

void WriteFile(const std::string& path, const std::string& bytes);
ObjectIdentity IdentityOf(const std::string& path);
// The files at these URIs, as they are now.
ObjectReaders Opened(const std::vector<ObjectIdentity>& files, const FileReaderOptions& options = {});
void DropFromPageCache(const std::string& path);
void ReadIntoPageCache(const std::string& path);

// Page-aligned memory.
struct AlignedMemory {
  explicit AlignedMemory(uint64_t bytes) : buffer(AllocateAligned(bytes)), bytes(bytes) {}
  HostSpan span(uint64_t offset = 0, uint64_t length = ~uint64_t{0}) const {
    return HostSpan(buffer.get(), bytes).subspan(offset, std::min(length, bytes - offset));
  }
  std::string_view text() const { return {reinterpret_cast<const char*>(buffer.get()), bytes}; }
  AlignedBuffer buffer;
  uint64_t bytes;
};

// One tensor of `image_bytes` U8 (a multiple of 256), and a manifest of its image.
ImageLayout OneTensorLayout(uint64_t image_bytes);
std::shared_ptr<const Manifest> ManifestOf(const std::string& image);

// Counts calls by kind, and lets hooks replace them.
class FakeFileIo : public FileIo {
 public:
  ssize_t Read(int fd, HostSpan destination, uint64_t offset) override;
  ssize_t ReadCached(int fd, HostSpan destination, uint64_t offset) override;
  int Stat(int fd, struct stat* info) override;

  // Returns the bytes read, or -1 and errno; nullopt: call the system.
  using Hook = std::function<std::optional<ssize_t>(bool direct, HostSpan destination, uint64_t offset)>;
  Hook on_read;
  std::function<void(struct stat*)> on_stat;
  std::atomic<int> direct_reads = 0;
  std::atomic<int> buffered_reads = 0;
  std::atomic<int> cached_reads = 0;
};

}  // namespace tensorcast
