#include "core/ingest/destination.h"

#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/device/copy_queue.h"

namespace tensorcast {
namespace {

// Memory of the host: chunks are fetched to their place, so there is nothing to place or await. Readers share
// `memory_` while the image fills.
class HostDestination final : public Destination {
 public:
  explicit HostDestination(HostAllocation memory)
      : memory_(std::make_shared<const HostAllocation>(std::move(memory))) {}

  // The replica's own memory is the buffer, with room for each chunk.
  int max_chunks() const override { return std::numeric_limits<int>::max(); }
  bool places() const override { return false; }

  absl::StatusOr<ChunkBuffer> Acquire(const RequestContext&, ByteRange range) override {
    return ChunkBuffer{memory_->Spans(range.offset, range.bytes), StagingBuffer()};
  }

  absl::StatusOr<AwaitPlaced> Place(ByteRange, std::span<const ConstHostSpan>) override {
    return AwaitPlaced();
  }

  ReplicaStorage memory() const override { return {.host = memory_, .device = nullptr, .file = nullptr}; }

  absl::StatusOr<ReplicaStorage> Finish(const std::shared_ptr<const Manifest>&) override {
    ReplicaStorage storage;
    storage.host = std::move(memory_);
    return storage;
  }

 private:
  std::shared_ptr<const HostAllocation> memory_;
};

// The staging buffer travels with its chunk and goes back to the ring when the chunk is placed or given up;
// that is what bounds the chunks under way.
absl::StatusOr<ChunkBuffer> AcquireStaged(StagingRing* staging, const RequestContext& context,
                                          ByteRange range, std::optional<int> device = {}) {
  TC_ASSIGN_OR_RETURN(StagingBuffer buffer, staging->Acquire(context, device));
  std::vector<HostSpan> spans = buffer.Spans(range.bytes);
  return ChunkBuffer{std::move(spans), std::move(buffer)};
}

// Two ways to the device: Place queues a copy from a staging buffer on one stream, in order; PlaceFrom and
// PlaceFromHost give the copy to `direct_`, which runs many at once and digests at the destination.
class DeviceDestination final : public Destination {
 public:
  DeviceDestination(DeviceRuntime* devices, std::shared_ptr<const DeviceBlock> memory, StagingRing* staging,
                    DirectCopies* direct)
      : memory_(std::move(memory)),
        staging_(staging),
        direct_(direct),
        copies_(devices, memory_->pointer().device) {}

  int max_chunks() const override { return staging_->buffers(); }
  bool places() const override { return true; }

  absl::StatusOr<ChunkBuffer> Acquire(const RequestContext& context, ByteRange range) override {
    return AcquireStaged(staging_, context, range, memory_->pointer().device);
  }

  absl::StatusOr<AwaitPlaced> Place(ByteRange range, std::span<const ConstHostSpan> bytes) override {
    absl::StatusOr<CopyQueue::Pending> copy = copies_.ToDevice(memory_->pointer() + range.offset, bytes);
    if (!copy.ok()) return AsOurs(range, copy.status());
    return [this, range, copy = *std::move(copy)]() mutable { return AsOurs(range, copy.Await()); };
  }

  bool TakesFrom(int device) const override { return direct_->Reach(device, memory_->pointer().device); }

  absl::StatusOr<AwaitDigested> PlaceFrom(ByteRange range, DevicePtr source, bool digest) override {
    return ToAwait(direct_->Begin(memory_->pointer() + range.offset, source, range.bytes, digest));
  }

  absl::StatusOr<AwaitDigested> PlaceFromHost(ByteRange range,
                                              std::span<const ConstHostSpan> source) override {
    return ToAwait(direct_->BeginUpload(memory_->pointer() + range.offset, source));
  }

  ReplicaStorage memory() const override { return {.host = nullptr, .device = memory_, .file = nullptr}; }

  absl::StatusOr<ReplicaStorage> Finish(const std::shared_ptr<const Manifest>&) override {
    ReplicaStorage storage;
    storage.device = std::move(memory_);
    return storage;
  }

 private:
  // Not made INTERNAL by AsOurs: the error may be the source device's fault, and the path through the host
  // decides that.
  static absl::StatusOr<AwaitDigested> ToAwait(absl::StatusOr<DirectCopies::Pending> begun) {
    TC_ASSIGN_OR_RETURN(DirectCopies::Pending copy, std::move(begun));
    return [copy = std::move(copy)]() mutable -> absl::StatusOr<Digest> {
      TC_ASSIGN_OR_RETURN(const DigestBytes digest, copy.Await());
      return Digest{.bytes = digest};
    };
  }

  // INTERNAL whatever the device said: the fault is this node's, neither the caller's nor a source's.
  absl::Status AsOurs(ByteRange range, const absl::Status& why) const {
    if (why.ok()) return why;
    return absl::InternalError(absl::StrCat("copy bytes ", range.offset, " to ", range.offset + range.bytes,
                                            " of the image to gpu:", memory_->pointer().device, ": ",
                                            why.message()));
  }

  std::shared_ptr<const DeviceBlock> memory_;
  StagingRing* const staging_;
  DirectCopies* const direct_;
  CopyQueue copies_;  // its stream ends before the memory goes
};

class DiskDestination final : public Destination {
 public:
  DiskDestination(std::unique_ptr<PackedWriter> writer, StagingRing* staging)
      : writer_(std::move(writer)), staging_(staging) {}

  int max_chunks() const override { return staging_->buffers(); }
  bool places() const override { return true; }

  absl::StatusOr<ChunkBuffer> Acquire(const RequestContext& context, ByteRange range) override {
    return AcquireStaged(staging_, context, range);
  }

  absl::StatusOr<AwaitPlaced> Place(ByteRange range, std::span<const ConstHostSpan> bytes) override {
    // The write is over when this returns: there is nothing to wait for.
    TC_RETURN_IF_ERROR(writer_->Write(range.offset, bytes));
    return AwaitPlaced();
  }

  absl::StatusOr<ReplicaStorage> Finish(const std::shared_ptr<const Manifest>& manifest) override {
    ReplicaStorage storage;
    TC_ASSIGN_OR_RETURN(storage.file, writer_->Commit(manifest));
    return storage;
  }

 private:
  std::unique_ptr<PackedWriter> writer_;
  StagingRing* const staging_;
};

}  // namespace

absl::StatusOr<AwaitDigested> Destination::PlaceFrom(ByteRange /*range*/, DevicePtr source, bool /*digest*/) {
  return absl::UnimplementedError(
      absl::StrCat("place bytes of gpu:", source.device,
                   ": this destination cannot copy from GPU memory; stage the bytes in host memory"));
}

absl::StatusOr<AwaitDigested> Destination::PlaceFromHost(ByteRange /*range*/,
                                                         std::span<const ConstHostSpan> /*source*/) {
  return absl::UnimplementedError(
      "place bytes of host memory: only a GPU that computes digests can read host memory in place; fetch the "
      "bytes to a buffer");
}

std::unique_ptr<Destination> MakeHostDestination(HostAllocation memory) {
  return std::make_unique<HostDestination>(std::move(memory));
}

std::unique_ptr<Destination> MakeDeviceDestination(DeviceRuntime* devices,
                                                   std::shared_ptr<const DeviceBlock> memory,
                                                   StagingRing* staging, DirectCopies* direct) {
  return std::make_unique<DeviceDestination>(devices, std::move(memory), staging, direct);
}

std::unique_ptr<Destination> MakeDiskDestination(std::unique_ptr<PackedWriter> writer, StagingRing* staging) {
  return std::make_unique<DiskDestination>(std::move(writer), staging);
}

}  // namespace tensorcast
