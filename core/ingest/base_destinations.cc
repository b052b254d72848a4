#include "core/ingest/base_destinations.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/artifact/digest.h"
#include "core/device/copy_queue.h"

namespace tensorcast {
namespace {

// A chunk is made in a buffer before it has its place.
class BufferedDestination : public Destination {
 public:
  int max_chunks() const override { return buffers_.staging->buffers(); }
  bool places() const override { return true; }

  absl::StatusOr<ChunkBuffer> Acquire(const RequestContext& context, ByteRange range) override {
    TC_ASSIGN_OR_RETURN(StagingBuffer buffer, buffers_.staging->Acquire(context));
    std::vector<HostSpan> spans = buffer.Spans(range.bytes);
    return ChunkBuffer{std::move(spans), std::move(buffer)};
  }

 protected:
  explicit BufferedDestination(DestinationBuffers buffers) : buffers_(std::move(buffers)) {}
  // REQUIRES: no chunk is made any longer.
  void FreeBuffers() { buffers_.own.reset(); }

 private:
  DestinationBuffers buffers_;
};

// Host memory. Chunks are made in a buffer, and written over the old ones once they are right.
// From Place on, the old chunk is gone. The retirement came before, so no lease, record or listing
// promises the old bytes by then.
class AdvancingDestination final : public BufferedDestination {
 public:
  AdvancingDestination(std::shared_ptr<const HostAllocation> memory, DestinationBuffers buffers)
      : BufferedDestination(std::move(buffers)), memory_(std::move(memory)) {}

  absl::StatusOr<AwaitPlaced> Place(ByteRange range, std::span<const ConstHostSpan> bytes) override {
    uint64_t offset = range.offset;
    for (const ConstHostSpan& piece : bytes) {
      ConstHostSpan rest = piece;
      for (const HostSpan& place : memory_->Spans(offset, piece.size())) {
        StreamingCopy(place.data(), rest.first(place.size()));
        rest = rest.subspan(place.size());
      }
      offset += piece.size();
    }
    return AwaitPlaced();
  }

  ReplicaStorage memory() const override { return {.host = memory_, .device = nullptr, .file = nullptr}; }

  absl::StatusOr<ReplicaStorage> Finish(const std::shared_ptr<const Manifest>&) override {
    return ReplicaStorage{.host = std::move(memory_), .device = nullptr, .file = nullptr};
  }

 private:
  std::shared_ptr<const HostAllocation> memory_;
};

// The bytes of a base on a GPU, brought to the host to be compared there. Thread-safe.
class BaseOnGpu {
 public:
  BaseOnGpu(DeviceRuntime* devices, DevicePtr image, std::unique_ptr<StagingRing> buffers)
      : image_(image), buffers_(std::move(buffers)), copies_(devices, image.device) {}

  DevicePtr image() const { return image_; }
  // Calls `use` for the range piece by piece; a piece is gone after its call. A thread holds one buffer and
  // waits for no other.
  absl::Status Read(ByteRange range, absl::FunctionRef<absl::Status(uint64_t offset, ConstHostSpan)> use) {
    TC_ASSIGN_OR_RETURN(const StagingBuffer buffer, buffers_->Acquire(RequestContext()));
    for (uint64_t done = 0; done < range.bytes;) {
      const uint64_t bytes = std::min(buffers_->buffer_bytes(), range.bytes - done);
      const HostSpan piece = buffer.Spans(bytes).front();  // a granule, so in one piece
      TC_ASSIGN_OR_RETURN(CopyQueue::Pending copy, copies_.ToHost(piece, image_ + range.offset + done));
      TC_RETURN_IF_ERROR(copy.Await());
      TC_RETURN_IF_ERROR(use(range.offset + done, piece));
      done += bytes;
    }
    return absl::OkStatus();
  }

 private:
  const DevicePtr image_;
  const std::unique_ptr<StagingRing> buffers_;
  CopyQueue copies_;
};

// Chunks are made in a buffer, and compared with the base, which stays as it is until Finish.
// memory() is empty, so the table serves nothing of the replica while it is staged, and each chunk counts as
// placed once its differences are kept.
class CommittingDestination final : public BufferedDestination {
 public:
  CommittingDestination(CommitOptions options, DestinationBuffers buffers)
      : BufferedDestination(std::move(buffers)),
        advance_(std::move(options.advance)),
        base_(std::move(options.base)),
        devices_(options.devices),
        wake_(std::move(options.wake)),
        retire_(std::move(options.retire)),
        threads_(options.threads),
        plan_(std::move(options.allocate)) {
    if (base_->device_block() == nullptr) return;
    on_gpu_ = std::make_unique<BaseOnGpu>(devices_, base_->memory().device, std::move(options.reads));
  }

  absl::StatusOr<AwaitPlaced> Place(ByteRange range, std::span<const ConstHostSpan> bytes) override {
    uint64_t offset = range.offset;
    for (const ConstHostSpan& piece : bytes) {
      ConstHostSpan rest = piece;
      const auto compare = [&](uint64_t at, ConstHostSpan there) -> absl::Status {
        TC_RETURN_IF_ERROR(plan_.Add(at, there, rest.first(there.size())));
        rest = rest.subspan(there.size());
        return absl::OkStatus();
      };
      TC_RETURN_IF_ERROR(ReadBase({.offset = offset, .bytes = piece.size()}, compare));
      offset += piece.size();
    }
    return AwaitPlaced();
  }

  absl::StatusOr<ReplicaStorage> Finish(const std::shared_ptr<const Manifest>&) override {
    std::unique_ptr<Stream> stream;
    if (on_gpu_ != nullptr) {
      TC_ASSIGN_OR_RETURN(stream, Rehearse());
    }
    // The commit needs no buffers.
    FreeBuffers();
    on_gpu_.reset();
    // The lease of this ingest goes to the gate, which counts it among the leases that may end. From here on
    // the holders may commit.
    advance_->gate()->Staged(std::move(base_), wake_);
    TC_ASSIGN_OR_RETURN(const RetiredReplica base, retire_());
    // From here on no process reads, and only a GPU can fail.
    if (stream == nullptr) {
      plan_.Scatter(*base.storage.host, threads_);
    } else {
      TC_RETURN_IF_ERROR(ScatterOnGpu(*stream, base));
    }
    return base.storage;
  }

 private:
  absl::Status ReadBase(ByteRange range,
                        absl::FunctionRef<absl::Status(uint64_t offset, ConstHostSpan)> use) {
    if (on_gpu_ != nullptr) {
      return Annotate(on_gpu_->Read(range, use), absl::StrCat("compare with the base ", advance_->base_id()));
    }
    for (const ConstHostSpan& there : base_->HostSpans(range.offset, range.bytes)) {
      TC_RETURN_IF_ERROR(use(range.offset, there));
      range.offset += there.size();
    }
    return absl::OkStatus();
  }

  // After the retirement it is too late for an error. So the GPU launches the same work once before, on
  // blocks without elements: that shows whether it runs the kernel and can address the lists. It reads no
  // values, and blocks that are kept whole are not part of it.
  absl::StatusOr<std::unique_ptr<Stream>> Rehearse() {
    const DevicePtr image = on_gpu_->image();
    TC_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, devices_->CreateStream(image.device));
    absl::Status done = plan_.Rehearse(*stream, image);
    if (const absl::Status synchronized = stream->Synchronize(); done.ok()) done = synchronized;
    if (!done.ok()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "write over ", advance_->base_id(), ": gpu:", image.device, " cannot change values in its memory: ",
          done.message(), "; get the new version again without live"));
    }
    return stream;
  }

  // An error leaves a mixture of both versions. The holders keep the memory until they have closed it.
  absl::Status ScatterOnGpu(Stream& stream, const RetiredReplica& base) const {
    const DevicePtr image = base.storage.device->pointer();
    absl::Status done = plan_.Scatter(stream, image);
    if (const absl::Status synchronized = stream.Synchronize(); done.ok()) done = synchronized;
    if (done.ok()) return done;
    return absl::InternalError(absl::StrCat(
        "write over replica ", base.replica_id, " of ", advance_->base_id(), " on gpu:", image.device, ": ",
        done.message(), "; the replica is lost, so get the weights again with live=True"));
  }

  const std::shared_ptr<Advance> advance_;
  std::shared_ptr<const ReplicaLease> base_;
  DeviceRuntime* const devices_;
  std::unique_ptr<BaseOnGpu> on_gpu_;  // its copies end before the lease
  const std::function<void()> wake_;
  const std::function<absl::StatusOr<RetiredReplica>()> retire_;
  const int threads_;
  ScatterPlan plan_;
};

}  // namespace

std::unique_ptr<Destination> MakeAdvancingDestination(std::shared_ptr<const HostAllocation> memory,
                                                      DestinationBuffers buffers) {
  return std::make_unique<AdvancingDestination>(std::move(memory), std::move(buffers));
}

std::unique_ptr<Destination> MakeCommittingDestination(CommitOptions options, DestinationBuffers buffers) {
  return std::make_unique<CommittingDestination>(std::move(options), std::move(buffers));
}

}  // namespace tensorcast
