#include "daemon/serving/served_replica.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/disk/disk_source.h"
#include "core/source/chunk_source.h"
#include "core/source/device_source.h"

namespace tensorcast::daemon {
namespace {

absl::Status PastTheEnd(uint64_t offset, uint64_t image_bytes) {
  return absl::OutOfRangeError(absl::StrCat("read at ", offset, " of an image of ", image_bytes, " bytes"));
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
// has sent it; the number of buffers bounds what all such pulls of this node have under way.
class StagedImage : public ServedReplica {
 public:
  StagedImage(std::unique_ptr<ChunkSource> source, ImageLayout layout,
              std::shared_ptr<StagingBuffers> staging, absl::Duration staging_wait)
      : source_(std::move(source)),
        layout_(std::move(layout)),
        staging_(std::move(staging)),
        staging_wait_(staging_wait) {}

  uint64_t image_bytes() const override { return layout_.image_bytes; }
  bool in_place() const override { return false; }
  void Release() override { source_.reset(); }
  absl::Duration reading() const override { return absl::Nanoseconds(reading_ns_.load()); }

  absl::StatusOr<transport::ServedPiece> Read(uint64_t offset, uint64_t bytes) override {
    if (offset >= layout_.image_bytes) return PastTheEnd(offset, layout_.image_bytes);
    TC_ASSIGN_OR_RETURN(std::shared_ptr<StagingBuffers::Buffer> buffer, staging_->Acquire(staging_wait_));
    const uint64_t length = std::min({bytes, layout_.image_bytes - offset, uint64_t{buffer->bytes().size()}});
    const HostSpan destination = buffer->bytes().first(length);
    const ChunkRequest request{.chunk = static_cast<uint32_t>(offset / layout_.chunk_bytes),
                               .range = {.offset = offset, .bytes = length},
                               .destination = {&destination, 1}};
    const SteadyTime start = SteadyNow();
    // No deadline: it reads this node's own hardware.
    TC_RETURN_IF_ERROR(source_->Fetch(RequestContext::Background(), request).status());
    reading_ns_ += absl::ToInt64Nanoseconds(SteadyNow() - start);
    return transport::ServedPiece{.bytes = destination, .hold = std::move(buffer)};
  }

 private:
  std::unique_ptr<ChunkSource> source_;  // holds the lease
  const ImageLayout layout_;
  const std::shared_ptr<StagingBuffers> staging_;
  const absl::Duration staging_wait_;
  std::atomic<int64_t> reading_ns_ = 0;
};

int CopySlots() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 4); }

// A leased replica that is read piece by piece; the lease lives as long as the source.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenReplicaSource(std::shared_ptr<ReplicaLease> lease,
                                                               DeviceRuntime* devices) {
  const uint64_t image_bytes = lease->manifest()->layout().image_bytes;
  const ReplicaMemory& memory = lease->memory();
  SourceInfo info{
      .type = SourceType::kLocal, .lane = std::string(kMemoryLane), .name = lease->location().ToString()};
  switch (lease->location().kind) {
    case LocationKind::kCpu:
      break;  // served in place
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
  return absl::InternalError("a replica that is served through buffers is neither on a GPU nor on disk");
}

}  // namespace

absl::StatusOr<std::shared_ptr<StagingBuffers>> StagingBuffers::Create(HostPool* pool, int count) {
  absl::StatusOr<HostAllocation> memory = pool->Allocate(kGranuleBytes * count);
  if (!memory.ok()) {
    return Annotate(memory.status(),
                    "buffers to serve replicas on GPUs and disks from; make host_pool larger");
  }
  std::shared_ptr<StagingBuffers> buffers(new StagingBuffers(*std::move(memory)));
  absl::MutexLock lock(&buffers->mutex_);
  for (int i = 0; i < count; ++i) {
    buffers->free_.push_back(buffers->memory_.Spans(kGranuleBytes * i, kGranuleBytes).front());
  }
  return buffers;
}

StagingBuffers::Buffer::~Buffer() { owner_->GiveBack(bytes_); }

absl::StatusOr<std::shared_ptr<StagingBuffers::Buffer>> StagingBuffers::Acquire(absl::Duration patience) {
  HostSpan bytes;
  {
    absl::MutexLock lock(&mutex_);
    // The patience begins anew whenever any buffer comes back: many pulls that share few buffers are slow,
    // which is no failure; only when none moves is one.
    while (free_.empty()) {
      const uint64_t before = given_back_;
      const auto moved = [this, before]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return given_back_ != before; };
      if (!mutex_.AwaitWithTimeout(absl::Condition(&moved), patience)) {
        return absl::DeadlineExceededError(absl::StrCat("no staging buffer came back for ",
                                                        absl::FormatDuration(patience),
                                                        ": the pulls that have them all stand still"));
      }
    }
    bytes = free_.back();
    free_.pop_back();
  }
  return std::make_shared<Buffer>(shared_from_this(), bytes);
}

void StagingBuffers::GiveBack(HostSpan bytes) {
  absl::MutexLock lock(&mutex_);
  free_.push_back(bytes);
  ++given_back_;
}

absl::StatusOr<std::shared_ptr<ServedReplica>> ServeReplica(std::shared_ptr<ReplicaLease> lease,
                                                            DeviceRuntime* devices,
                                                            std::shared_ptr<StagingBuffers> staging,
                                                            absl::Duration staging_wait) {
  if (lease->location().kind == LocationKind::kCpu) return std::make_shared<HostImage>(std::move(lease));
  ImageLayout layout = lease->manifest()->layout();
  TC_ASSIGN_OR_RETURN(std::unique_ptr<ChunkSource> source, OpenReplicaSource(std::move(lease), devices));
  return std::make_shared<StagedImage>(std::move(source), std::move(layout), std::move(staging),
                                       staging_wait);
}

}  // namespace tensorcast::daemon
