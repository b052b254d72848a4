#include "daemon/sources/own_sources.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "core/disk/disk_source.h"
#include "core/safetensors/safetensors.h"
#include "core/source/device_source.h"
#include "core/source/mapped_source.h"

namespace tensorcast::daemon {
namespace {

int CopySlots() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 4); }

// The model that the files are now, which is the imported one as far as files tell.
absl::StatusOr<SafetensorsModel> OpenOrigin(const ImportRoots& roots, const v1::Origin& origin,
                                            uint64_t chunk_bytes) {
  if (origin.files().empty()) {
    return absl::FailedPreconditionError("the origin names no file");
  }
  std::vector<OpenedFile> files;
  for (const v1::Origin::File& file : origin.files()) {
    TC_ASSIGN_OR_RETURN(files.emplace_back(), roots.OpenAgain({file.path(), file.bytes(), file.mtime_ns()}));
  }
  return ReadSafetensors(std::move(files), chunk_bytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChunkSource>> OpenReplicaSource(std::shared_ptr<ReplicaLease> lease,
                                                               DeviceRuntime* devices) {
  const uint64_t image_bytes = lease->manifest()->layout().image_bytes;
  const ReplicaMemory& memory = lease->memory();
  SourceInfo info{.type = SourceType::kLocal, .lane = "memory", .name = lease->location().ToString()};
  switch (lease->location().kind) {
    case LocationKind::kCpu: {
      const std::vector<HostSpan> spans = memory.host->Spans(0, image_bytes);
      return MakeMappedSource(std::move(info), {spans.begin(), spans.end()}, std::move(lease), CopySlots());
    }
    case LocationKind::kGpu: {
      const DevicePtr image = memory.device;
      return MakeDeviceSource(std::move(info), devices, image, std::move(lease), CopySlots());
    }
    case LocationKind::kDisk: {
      const int file = memory.file;
      const uint64_t offset = memory.file_image_offset;
      return OpenPackedSource("the packed file on this node", file, offset, image_bytes, std::move(lease));
    }
  }
  return absl::InternalError("a replica is neither on a GPU, nor in memory, nor on disk");
}

absl::Status CheckOriginFiles(const ImportRoots& roots, const v1::Origin& origin) {
  return OpenOrigin(roots, origin, kDefaultChunkBytes).status();
}

bool IsAboutOriginFiles(const absl::Status& error) {
  return absl::IsNotFound(error) || absl::IsPermissionDenied(error) || absl::IsInvalidArgument(error) ||
         absl::IsFailedPrecondition(error);
}

absl::StatusOr<std::unique_ptr<ChunkSource>> OpenOriginSource(const ImportRoots& roots,
                                                              const v1::Origin& origin,
                                                              const Manifest& manifest) {
  TC_ASSIGN_OR_RETURN(SafetensorsModel model, OpenOrigin(roots, origin, manifest.layout().chunk_bytes));
  if (model.layout != manifest.layout()) {
    return absl::DataLossError(absl::StrCat(
        origin.files(0).path(), " is no longer what was imported: its tensors changed; import it again"));
  }
  return OpenFileSource(std::move(model.files), std::move(model.extents), manifest.layout().image_bytes);
}

}  // namespace tensorcast::daemon
