#include "daemon/serving/served_replica.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/device/copy_queue.h"
#include "core/disk/packed_source.h"
#include "core/source/chunk_source.h"

namespace tensorcast::daemon {
namespace {

absl::Status PastTheEnd(uint64_t offset, uint64_t image_bytes) {
  return absl::OutOfRangeError(absl::StrCat("serve a replica: a read at offset ", offset,
                                            " is outside the image of ", image_bytes,
                                            " bytes; read within the image"));
}

// Memory of the pool, served where it is, also while it fills or is partial, and then grows. A piece needs no
// hold of its own: the lease keeps all of it, until Release, which comes after the transport's last read.
class HostImage : public ServedReplica {
 public:
  explicit HostImage(std::shared_ptr<ReplicaLease> lease)
      : lease_(std::move(lease)),
        image_bytes_(lease_->manifest()->layout().image_bytes),
        availability_(lease_->availability()) {}

  uint64_t image_bytes() const override { return image_bytes_; }
  bool in_place() const override { return true; }
  void Release() override { lease_.reset(); }
  std::vector<ConstHostSpan> Segments(uint64_t offset, uint64_t bytes) const override {
    return lease_->HostSpans(offset, bytes);
  }
  std::shared_ptr<const Availability> availability() const override { return availability_; }

  absl::StatusOr<transport::ServedPiece> Read(uint64_t offset, uint64_t bytes) override {
    if (offset >= image_bytes_) return PastTheEnd(offset, image_bytes_);
    const uint64_t length = std::min(bytes, image_bytes_ - offset);
    return transport::ServedPiece{.bytes = lease_->HostSpans(offset, length).front(), .hold = nullptr};
  }

 private:
  std::shared_ptr<ReplicaLease> lease_;
  const uint64_t image_bytes_;
  const std::shared_ptr<const Availability> availability_;
};

// A replica on a GPU or a disk. Each piece is read into a buffer of the pool and holds it until the transport
// has sent it; the number of buffers bounds what all such pulls of this node have under way. A transport
// reads several pieces at once, so one is on its way into a buffer while others are sent.
class StagedImage : public ServedReplica {
 public:
  // `device`: the one that is read, if it is one.
  StagedImage(uint64_t image_bytes, std::optional<int> device, std::shared_ptr<StagingBuffers> staging,
              absl::Duration staging_wait)
      : image_bytes_(image_bytes),
        device_(device),
        staging_(std::move(staging)),
        staging_wait_(staging_wait) {}

  uint64_t image_bytes() const override { return image_bytes_; }
  bool in_place() const override { return false; }
  absl::Duration reading() const override { return absl::Nanoseconds(reading_ns_.load()); }

  absl::StatusOr<transport::ServedPiece> Read(uint64_t offset, uint64_t bytes) override {
    if (offset >= image_bytes_) return PastTheEnd(offset, image_bytes_);
    TC_ASSIGN_OR_RETURN(std::shared_ptr<StagingBuffers::Buffer> buffer,
                        staging_->Acquire(staging_wait_, device_));
    const uint64_t length = std::min({bytes, image_bytes_ - offset, uint64_t{buffer->bytes().size()}});
    const HostSpan destination = buffer->bytes().first(length);
    const SteadyTime start = SteadyNow();
    TC_RETURN_IF_ERROR(Fill(offset, destination));
    reading_ns_ += absl::ToInt64Nanoseconds(SteadyNow() - start);
    return transport::ServedPiece{.bytes = destination, .hold = std::move(buffer)};
  }

 private:
  // The image's bytes from `offset` on. Afterwards nothing writes there any more. Has no deadline: it reads
  // this node's own hardware.
  virtual absl::Status Fill(uint64_t offset, HostSpan destination) = 0;

  const uint64_t image_bytes_;
  const std::optional<int> device_;
  const std::shared_ptr<StagingBuffers> staging_;
  const absl::Duration staging_wait_;
  std::atomic<int64_t> reading_ns_ = 0;
};

// The receiver digests what it gets: here the bytes are only copied.
class DeviceImage final : public StagedImage {
 public:
  DeviceImage(std::shared_ptr<ReplicaLease> lease, DeviceRuntime* devices,
              std::shared_ptr<StagingBuffers> staging, absl::Duration staging_wait)
      : StagedImage(lease->manifest()->layout().image_bytes, lease->memory().device.device,
                    std::move(staging), staging_wait),
        image_(lease->memory().device),
        lease_(std::move(lease)),
        copies_(devices, image_.device) {}

  void Release() override { lease_.reset(); }
  DevicePtr device_image() const override { return image_; }

 private:
  absl::Status Fill(uint64_t offset, HostSpan destination) override {
    TC_ASSIGN_OR_RETURN(CopyQueue::Pending copy, copies_.ToHost(destination, image_ + offset));
    return Annotate(copy.Await(), absl::StrCat("read gpu:", image_.device));
  }

  const DevicePtr image_;
  std::shared_ptr<ReplicaLease> lease_;
  CopyQueue copies_;
};

class FileImage final : public StagedImage {
 public:
  FileImage(std::unique_ptr<ChunkSource> source, const ImageLayout& layout,
            std::shared_ptr<StagingBuffers> staging, absl::Duration staging_wait)
      : StagedImage(layout.image_bytes, std::nullopt, std::move(staging), staging_wait),
        chunk_bytes_(layout.chunk_bytes),
        source_(std::move(source)) {}

  void Release() override { source_.reset(); }

 private:
  absl::Status Fill(uint64_t offset, HostSpan destination) override {
    const ChunkRequest request{.chunk = static_cast<uint32_t>(offset / chunk_bytes_),
                               .range = {.offset = offset, .bytes = destination.size()},
                               .destination = {&destination, 1}};
    return source_->Fetch(RequestContext::Background(), request).status();
  }

  const uint64_t chunk_bytes_;
  std::unique_ptr<ChunkSource> source_;  // holds the lease
};

}  // namespace

absl::StatusOr<std::shared_ptr<StagingBuffers>> StagingBuffers::Create(HostPool* pool, int count,
                                                                       const NumaNodes& numa_nodes) {
  absl::StatusOr<StagingMemory> memory = StagingMemory::Create(pool, count, kGranuleBytes, numa_nodes);
  if (!memory.ok()) {
    return absl::Status(memory.status().code(),
                        absl::StrCat("allocate buffers to serve replicas on GPUs and disks: ",
                                     memory.status().message(), "; make daemon.host_pool larger"));
  }
  return std::shared_ptr<StagingBuffers>(new StagingBuffers(*std::move(memory)));
}

StagingBuffers::Buffer::~Buffer() { owner_->GiveBack(memory_); }

// Called on a serving thread of a lane. Any number of pulls share the buffers; `given_back_` counts returns,
// so that a waiter sees that another pull moved although it got no buffer itself.
absl::StatusOr<std::shared_ptr<StagingBuffers::Buffer>> StagingBuffers::Acquire(absl::Duration patience,
                                                                                std::optional<int> device) {
  const HostAllocation* memory = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    // The patience begins anew whenever any buffer comes back: many pulls that share few buffers are slow,
    // which is not a failure; only when none moves is one.
    while (!memory_.has_free()) {
      const uint64_t before = given_back_;
      const auto moved = [this, before]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return given_back_ != before; };
      if (!mutex_.AwaitWithTimeout(absl::Condition(&moved), patience)) {
        return absl::DeadlineExceededError(absl::StrCat(
            "serve a replica: no staging buffer became free within ", absl::FormatDuration(patience),
            ", because the pulls that use the buffers stall; pull from another source"));
      }
    }
    memory = memory_.Take(device);
  }
  return std::make_shared<Buffer>(shared_from_this(), memory);
}

// Called where the transport lets go of a piece, on its progress thread: takes the mutex for a moment only.
void StagingBuffers::GiveBack(const HostAllocation* memory) {
  absl::MutexLock lock(&mutex_);
  memory_.GiveBack(memory);
  ++given_back_;
}

absl::StatusOr<std::shared_ptr<ServedReplica>> ServeReplica(std::shared_ptr<ReplicaLease> lease,
                                                            DeviceRuntime* devices,
                                                            std::shared_ptr<StagingBuffers> staging,
                                                            absl::Duration staging_wait) {
  switch (lease->location().kind) {
    case LocationKind::kCpu:
      return std::make_shared<HostImage>(std::move(lease));
    case LocationKind::kGpu:
      return std::make_shared<DeviceImage>(std::move(lease), devices, std::move(staging), staging_wait);
    case LocationKind::kDisk: {
      // Both are copied, since the lease moves into the source.
      const ImageLayout layout = lease->manifest()->layout();
      const ReplicaMemory memory = lease->memory();
      TC_ASSIGN_OR_RETURN(std::unique_ptr<ChunkSource> source,
                          OpenPackedSource({.name = "the packed file on this node"}, memory.file,
                                           memory.file_image_offset, layout.image_bytes, std::move(lease)));
      return std::make_shared<FileImage>(std::move(source), layout, std::move(staging), staging_wait);
    }
  }
  return absl::InternalError(
      "serve a replica: the kind of the replica's location is unknown; report this defect of the daemon");
}

}  // namespace tensorcast::daemon
