#include "core/engine/destination.h"

#include <limits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"

namespace tensorcast {
namespace {

class HostDestination final : public Destination {
 public:
  explicit HostDestination(HostAllocation memory)
      : memory_(std::make_shared<const HostAllocation>(std::move(memory))) {}

  int max_chunks() const override { return std::numeric_limits<int>::max(); }
  bool places() const override { return false; }

  absl::StatusOr<ChunkBuffer> Acquire(const RequestContext&, ByteRange range) override {
    return ChunkBuffer{memory_->Spans(range.offset, range.bytes), StagingBuffer()};
  }

  absl::Status Place(ByteRange, const ChunkBuffer&) override { return absl::OkStatus(); }

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
                                          ByteRange range) {
  TC_ASSIGN_OR_RETURN(StagingBuffer buffer, staging->Acquire(context));
  std::vector<HostSpan> spans = buffer.Spans(range.bytes);
  return ChunkBuffer{std::move(spans), std::move(buffer)};
}

class DeviceDestination final : public Destination {
 public:
  DeviceDestination(DeviceRuntime* devices, DeviceBlock memory, StagingRing* staging)
      : devices_(devices),
        memory_(std::make_shared<const DeviceBlock>(std::move(memory))),
        staging_(staging) {}

  int max_chunks() const override { return staging_->buffers(); }
  bool places() const override { return true; }

  absl::StatusOr<ChunkBuffer> Acquire(const RequestContext& context, ByteRange range) override {
    return AcquireStaged(staging_, context, range);
  }

  absl::Status Place(ByteRange range, const ChunkBuffer& buffer) override {
    // INTERNAL whatever the device said: the fault is this node's, neither the caller's nor a source's.
    absl::Status placed = Copy(range, buffer);
    if (!placed.ok()) {
      return absl::InternalError(
          absl::StrCat("copying bytes ", range.offset, " to ", range.offset + range.bytes,
                       " of the image to gpu:", memory_->pointer().device, " failed: ", placed.message()));
    }
    return placed;
  }

  ReplicaStorage memory() const override { return {.host = nullptr, .device = memory_, .file = nullptr}; }

  absl::StatusOr<ReplicaStorage> Finish(const std::shared_ptr<const Manifest>&) override {
    ReplicaStorage storage;
    storage.device = std::move(memory_);
    return storage;
  }

 private:
  absl::Status Copy(ByteRange range, const ChunkBuffer& buffer) {
    TC_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, TakeStream());
    DevicePtr target = memory_->pointer() + range.offset;
    absl::Status enqueued;
    for (const HostSpan& span : buffer.spans) {
      if (enqueued = stream->CopyToDevice(target, span.data(), span.size()); !enqueued.ok()) break;
      target = target + span.size();
    }
    // Also after an error: copies enqueued before it still read the staging buffer.
    const absl::Status done = stream->Synchronize();
    TC_RETURN_IF_ERROR(enqueued);
    TC_RETURN_IF_ERROR(done);
    absl::MutexLock lock(&mutex_);
    // After an error it is not kept: what state it is in nobody knows.
    idle_streams_.push_back(std::move(stream));
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Stream>> TakeStream() {
    {
      absl::MutexLock lock(&mutex_);
      if (!idle_streams_.empty()) {
        std::unique_ptr<Stream> stream = std::move(idle_streams_.back());
        idle_streams_.pop_back();
        return stream;
      }
    }
    return devices_->CreateStream(memory_->pointer().device);
  }

  DeviceRuntime* const devices_;
  std::shared_ptr<const DeviceBlock> memory_;
  StagingRing* const staging_;
  absl::Mutex mutex_;
  // As many as there were ever chunks being copied at once. Destroyed before the memory.
  std::vector<std::unique_ptr<Stream>> idle_streams_ ABSL_GUARDED_BY(mutex_);
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

  absl::Status Place(ByteRange range, const ChunkBuffer& buffer) override {
    const std::vector<ConstHostSpan> bytes(buffer.spans.begin(), buffer.spans.end());
    return Annotate(writer_->Write(range.offset, bytes), "writing the packed file");
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

std::unique_ptr<Destination> MakeHostDestination(HostAllocation memory) {
  return std::make_unique<HostDestination>(std::move(memory));
}

std::unique_ptr<Destination> MakeDeviceDestination(DeviceRuntime* devices, DeviceBlock memory,
                                                   StagingRing* staging) {
  return std::make_unique<DeviceDestination>(devices, std::move(memory), staging);
}

std::unique_ptr<Destination> MakeDiskDestination(std::unique_ptr<PackedWriter> writer, StagingRing* staging) {
  return std::make_unique<DiskDestination>(std::move(writer), staging);
}

}  // namespace tensorcast
