#include "core/disk/disk_source.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/disk/bounce_buffers.h"
#include "core/disk/chunk_reader.h"
#include "core/disk/disk_metrics.h"
#include "core/disk/file_io.h"
#include "core/disk/file_reader.h"
#include "core/disk/object_extents.h"
#include "core/disk/packed_format.h"

namespace tensorcast {
namespace {

using Files = std::vector<std::unique_ptr<FileReader>>;

// For messages: where the file is now, as far as this process may know.
std::string PathOf(int fd) {
  std::error_code unknown;
  return std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", fd), unknown).string();
}

class DiskSource final : public ChunkSource {
 public:
  // `kind`: "packed" or "origin", the label of what is read.
  DiskSource(std::string_view kind, std::string name, Files files, ObjectExtents extents,
             std::shared_ptr<void> keep_alive, const DiskSourceOptions& options)
      : kind_(kind),
        info_{.type = SourceType::kDisk,
              .lane = std::string(kDiskLane),
              .name = std::move(name),
              .grant_id = options.grant_id,
              .span = options.span,
              .made_by = options.made_by,
              .replica_id = options.replica_id},
        max_concurrency_(std::max(1, options.max_concurrency)),
        read_bytes_(std::max(AlignDown(options.read_bytes), kPackedAlignment)),
        keep_alive_(std::move(keep_alive)),
        files_(std::move(files)),
        extents_(std::move(extents)),
        buffers_(read_bytes_, max_concurrency_) {}

  const SourceInfo& info() const override { return info_; }
  int max_concurrency() const override { return max_concurrency_; }

  absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext& context,
                                                    const ChunkRequest& request) override {
    const DiskOperation read("read");
    absl::StatusOr<ChunkDigests> digest = Read(context, request);
    // A caller that lost interest says nothing about the disk.
    if (digest.ok() || context.Check("read").ok()) read.End(digest.ok());
    if (!digest.ok()) return digest.status();
    otel::metrics::kDiskReadBytes.Add(request.range.bytes, {kind_});
    return *digest;
  }

 private:
  absl::StatusOr<ChunkDigests> Read(const RequestContext& context, const ChunkRequest& request) {
    TC_RETURN_IF_ERROR(CheckRange(info_, request, extents_.image_bytes()));
    TC_RETURN_IF_ERROR(CheckDestination(info_, request));
    const std::vector<ObjectPiece> pieces = extents_.Cut(request.range, request.destination);
    ChunkReader reader(files_, &buffers_, read_bytes_, request.blake3);
    TC_RETURN_IF_ERROR(reader.Read(context, DescribeFetch(info_, request), pieces));
    TC_RETURN_IF_ERROR(CheckUnchanged(pieces));
    return reader.digests();
  }

  // After the reads: bytes that were written over in the meantime are not passed on as the file's.
  absl::Status CheckUnchanged(std::span<const ObjectPiece> pieces) const {
    std::set<uint32_t> touched;
    for (const ObjectPiece& piece : pieces) {
      if (!piece.zeros()) touched.insert(piece.file);
    }
    for (const uint32_t file : touched) TC_RETURN_IF_ERROR(files_[file]->CheckUnchanged());
    return absl::OkStatus();
  }

  const std::string_view kind_;
  const SourceInfo info_;
  const int max_concurrency_;
  const uint64_t read_bytes_;
  const std::shared_ptr<void> keep_alive_;  // before the files: what they borrow goes last
  const Files files_;
  const ObjectExtents extents_;
  BounceBuffers buffers_;
};

std::string NameOf(const std::vector<OpenedFile>& files) {
  if (files.empty()) return "no file";
  if (files.size() == 1) return files.front().identity.path;
  return absl::StrCat(files.front().identity.path, " and ", files.size() - 1, " more");
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChunkSource>> OpenFileSource(std::vector<OpenedFile> files,
                                                            std::vector<ObjectExtent> extents,
                                                            uint64_t image_bytes,
                                                            const DiskSourceOptions& options) {
  Files readers;
  std::vector<uint64_t> file_bytes;
  std::string name = NameOf(files);
  for (OpenedFile& file : files) {
    file_bytes.push_back(file.identity.bytes);
    TC_ASSIGN_OR_RETURN(readers.emplace_back(), FileReader::Of(std::move(file), options.io));
  }
  TC_ASSIGN_OR_RETURN(ObjectExtents map, ObjectExtents::Create(std::move(extents), image_bytes, file_bytes));
  return std::make_unique<DiskSource>("origin", std::move(name), std::move(readers), std::move(map), nullptr,
                                      options);
}

absl::StatusOr<std::unique_ptr<ChunkSource>> OpenPackedSource(std::string name, int fd, uint64_t image_offset,
                                                              uint64_t image_bytes,
                                                              std::shared_ptr<void> keep_alive,
                                                              const DiskSourceOptions& options) {
  TC_ASSIGN_OR_RETURN(std::unique_ptr<FileReader> reader,
                      FileReader::FromDescriptor(absl::StrCat(name, " (", PathOf(fd), ")"), fd, options.io));
  const ObjectExtent whole{0, image_offset, 0, image_bytes};
  TC_ASSIGN_OR_RETURN(ObjectExtents map,
                      ObjectExtents::Create({whole}, image_bytes, {reader->identity().bytes}));
  Files readers;
  readers.push_back(std::move(reader));
  return std::make_unique<DiskSource>("packed", std::move(name), std::move(readers), std::move(map),
                                      std::move(keep_alive), options);
}

}  // namespace tensorcast
