#include "daemon/app/storage.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/posix/state_files.h"
#include "base/status.h"
#include "core/disk/import_roots.h"
#include "objects/open.h"

namespace tensorcast::daemon {
namespace {

// A packed file can be cut short behind the daemon's back. (One that was removed is found out by the store.)
absl::Status CheckPackedFile(const PackedFile& packed) {
  struct stat open{};
  const uint64_t bytes = packed.image_offset() + packed.manifest()->layout().image_bytes;
  if (fstat(packed.fd(), &open) == 0 && static_cast<uint64_t>(open.st_size) >= bytes) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("read the packed file ", packed.path(),
                   ": the file was cut short and is no longer a copy; drop the replica in this file "
                   "(tensorcast replica rm --force) and put the artifact again"));
}

// A segment is kept or new as a whole, so that a small pool is of several, too.
uint64_t KeptSegmentBytes(uint64_t pool_bytes) {
  return std::clamp(pool_bytes / 8 / kGranuleBytes * kGranuleBytes, kGranuleBytes, kSegmentBytes);
}

// What a daemon that comes back has to write into: its staging buffers, and at least a segment beside.
uint64_t BytesForNew(const DaemonOptions& options, uint64_t segment_bytes) {
  const uint64_t staging = options.engine.staging_buffers * options.engine.staging_buffer_bytes +
                           options.serving_buffers * kGranuleBytes;
  return (staging + segment_bytes - 1) / segment_bytes * segment_bytes + segment_bytes;
}

absl::StatusOr<std::shared_ptr<const ObjectStore>> OpenImports(const DaemonOptions& options,
                                                               std::shared_ptr<objects::ReadRates> rates) {
  TC_ASSIGN_OR_RETURN(ImportRoots roots, ImportRoots::Beneath(options.disk.import_roots));
  objects::OpenOptions open{.files = std::make_shared<const ImportRoots>(std::move(roots))};
  // What was packed there comes back from there.
  objects::OriginOptions readable = options.origins;
  readable.prefixes.insert(readable.prefixes.end(), options.archives.places.begin(),
                           options.archives.places.end());
  TC_ASSIGN_OR_RETURN(open.origins, readable.Parse(open.environment));
  open.rates = std::move(rates);
  return objects::OpenObjects(std::move(open));
}

absl::StatusOr<std::shared_ptr<const objects::S3Writer>> OpenArchives(const DaemonOptions& options) {
  if (options.archives.places.empty()) return nullptr;
  objects::OpenOptions open;
  TC_ASSIGN_OR_RETURN(open.origins, options.archives.Parse(open.environment));
  return objects::OpenWriter(std::move(open));
}

}  // namespace

absl::Status Storage::PageLock(std::byte* begin, uint64_t bytes, HostAccess access) {
  TC_RETURN_IF_ERROR(devices_->RegisterHost(begin, bytes, access));
  absl::MutexLock lock(&mutex_);
  page_locked_.insert(begin);
  return absl::OkStatus();
}

// Each segment, since CUDA says nothing of a range that is several mappings. No copy reaches from one into
// the next, as no extent does. One that was kept can be read only, which not every device page-locks: then
// the driver stages what is copied from there.
absl::Status Storage::PageLockAll() {
  for (size_t i = 0; i < pool_->segments().size(); ++i) {
    const PoolSegment& segment = pool_->segments()[i];
    std::byte* const begin = pool_->base() + segment.offset;
    switch (pool_->kind(i)) {
      case SegmentKind::kOwn:
        TC_RETURN_IF_ERROR(PageLock(begin, segment.bytes, HostAccess::kReadWrite));
        break;
      case SegmentKind::kKept:
        if (const absl::Status locked = PageLock(begin, segment.bytes, HostAccess::kReadOnly); !locked.ok()) {
          LOG(WARNING) << "page-lock a pool segment of the previous daemon: " << locked
                       << "; copies from the segment to GPUs are slower";
        }
        break;
      case SegmentKind::kRoom:
        break;
    }
  }
  return absl::OkStatus();
}

void Storage::Unlock(std::byte* begin) {
  {
    absl::MutexLock lock(&mutex_);
    if (page_locked_.erase(begin) == 0) return;
  }
  const absl::Status status = devices_->UnregisterHost(begin);
  LOG_IF(WARNING, !status.ok()) << "unlock the pages of a host pool segment: " << status;
}

absl::StatusOr<std::unique_ptr<Storage>> Storage::Open(const DaemonOptions& options, DeviceRuntime* devices,
                                                       KeptPool* kept) {
  std::unique_ptr<Storage> storage(new Storage(devices));
  HostPool::Options pool = options.pool;
  pool.numa_nodes = DistinctNodes(storage->numa_nodes_);
  HostPool::Kept from_before;
  if (kept != nullptr) {
    // The segments that were kept decide the size of segments, and which of them this pool begins with. Room
    // for new memory is left beside them, since kept segments cannot be written to.
    PreviousPool& previous = kept->previous();
    pool.segment_bytes = previous.SegmentBytes(pool.bytes, KeptSegmentBytes(pool.bytes));
    from_before.segments =
        previous.TakeSegments(pool.bytes, pool.segment_bytes,
                              pool.bytes - std::min(pool.bytes, BytesForNew(options, pool.segment_bytes)));
    // The pool replaces a kept segment when its last replica has gone. The old one must not stay page-locked,
    // and the new one is locked and told to the keeper.
    from_before.before_replaced = [storage = storage.get()](const PoolSegment& gone) {
      storage->Unlock(storage->pool_->base() + gone.offset);
    };
    from_before.on_replaced = [storage = storage.get(), kept](const PoolSegment& made,
                                                              const std::string& made_name,
                                                              const std::string& gone_name) {
      const absl::Status locked =
          storage->PageLock(storage->pool_->base() + made.offset, made.bytes, HostAccess::kReadWrite);
      LOG_IF(WARNING, !locked.ok()) << "page-lock a segment of the host pool: " << locked
                                    << "; copies between the segment and GPUs are slower";
      kept->OnReplaced(made, made_name, gone_name);
    };
  }
  TC_ASSIGN_OR_RETURN(storage->pool_, HostPool::Create(pool, std::move(from_before)));
  // The keeper has everything still, so a start that is refused here loses nothing.
  if (kept != nullptr && !options.keeper.discard_kept) {
    TC_RETURN_IF_ERROR(kept->previous().CheckTakesAll(*storage->pool_));
  }
  TC_RETURN_IF_ERROR(storage->PageLockAll());
  if (options.disk.keep_artifacts) {
    TC_RETURN_IF_ERROR(MakePrivateFolder(options.disk.folder, ""));
    TC_ASSIGN_OR_RETURN(storage->artifacts_, ArtifactStore::Open(options.disk.folder));
  }
  storage->read_rates_ =
      std::make_shared<objects::ReadRates>(options.origins.max_rate, options.origins.max_rate_of_origin);
  TC_ASSIGN_OR_RETURN(storage->imports_, OpenImports(options, storage->read_rates_));
  TC_ASSIGN_OR_RETURN(storage->is_immutable_, options.origins.ParseImmutable());
  TC_ASSIGN_OR_RETURN(storage->archives_, OpenArchives(options));
  // Last: from here on there are allocations in the pool.
  if (kept != nullptr) kept->Attach(storage->pool_.get());
  return storage;
}

Storage::~Storage() {
  absl::MutexLock lock(&mutex_);
  for (std::byte* const segment : page_locked_) {
    const absl::Status status = devices_->UnregisterHost(segment);
    LOG_IF(WARNING, !status.ok()) << "unlock the pages of a host pool segment: " << status;
  }
}

absl::StatusOr<bool> Storage::HasPacked(const ReplicaInfo& replica) const {
  // A replica on disk is the packed file itself, not a second copy of it.
  if (replica.location.kind == LocationKind::kDisk || artifacts_ == nullptr) return false;
  const auto packed = artifacts_->Find(replica.artifact_id);
  if (absl::IsNotFound(packed.status())) return false;
  TC_RETURN_IF_ERROR(packed.status());
  TC_RETURN_IF_ERROR(CheckPackedFile(**packed));
  return true;
}

}  // namespace tensorcast::daemon
