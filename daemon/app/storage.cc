#include "daemon/app/storage.h"

#include <sys/stat.h>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/posix/state_files.h"
#include "base/status.h"

namespace tensorcast::daemon {
namespace {

// A packed file can be cut short behind the daemon's back. (One that was removed is found out by the store.)
absl::Status CheckPackedFile(const PackedFile& packed) {
  struct stat open{};
  const uint64_t bytes = packed.image_offset() + packed.manifest()->layout().image_bytes;
  if (fstat(packed.fd(), &open) == 0 && static_cast<uint64_t>(open.st_size) >= bytes) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the packed file ", packed.path(),
      " was cut short: it is no copy any more; drop its replica (rm --replica --force) and put the artifact "
      "again"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Storage>> Storage::Open(const DaemonOptions& options, DeviceRuntime* devices) {
  std::unique_ptr<Storage> storage(new Storage(devices));
  TC_ASSIGN_OR_RETURN(storage->pool_, HostPool::Create({.bytes = options.host_pool_bytes,
                                                        .use_huge_pages = options.huge_pages,
                                                        .prefault_threads = options.prefault_threads}));
  // Each segment, since CUDA says nothing of a range that is several mappings. No copy reaches from one into
  // the next, as no extent does.
  for (const PoolSegment& segment : storage->pool_->segments()) {
    TC_RETURN_IF_ERROR(devices->RegisterHost(storage->pool_->base() + segment.offset, segment.bytes));
    ++storage->page_locked_segments_;
  }
  if (options.disk_tier) {
    TC_RETURN_IF_ERROR(MakePrivateFolder(options.disk_dir, ""));
    TC_ASSIGN_OR_RETURN(storage->artifacts_, ArtifactStore::Open(options.disk_dir));
  }
  TC_ASSIGN_OR_RETURN(storage->import_roots_, ImportRoots::Beneath(options.import_roots));
  return storage;
}

Storage::~Storage() {
  for (size_t i = 0; i < page_locked_segments_; ++i) {
    const absl::Status status = devices_->UnregisterHost(pool_->base() + pool_->segments()[i].offset);
    LOG_IF(WARNING, !status.ok()) << "A segment of the host pool stays page-locked: " << status;
  }
}

absl::StatusOr<bool> Storage::HasPacked(const ReplicaInfo& replica) const {
  if (replica.location.kind == LocationKind::kDisk || artifacts_ == nullptr) return false;
  const auto packed = artifacts_->Find(replica.artifact_id);
  if (absl::IsNotFound(packed.status())) return false;
  TC_RETURN_IF_ERROR(packed.status());
  TC_RETURN_IF_ERROR(CheckPackedFile(**packed));
  return true;
}

}  // namespace tensorcast::daemon
