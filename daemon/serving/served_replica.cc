#include "daemon/serving/served_replica.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/status.h"
#include "base/steady_time.h"
#include "core/source/chunk_source.h"
#include "daemon/sources/own_sources.h"

namespace tensorcast::daemon {
namespace {

absl::Status PastTheEnd(uint64_t offset, uint64_t image_bytes) {
  return absl::OutOfRangeError(absl::StrCat("read at ", offset, " of an image of ", image_bytes, " bytes"));
}

class HostImage : public ServedReplica {
 public:
  explicit HostImage(std::shared_ptr<ReplicaLease> lease)
      : lease_(std::move(lease)), image_bytes_(lease_->manifest()->layout().image_bytes) {
    const std::vector<HostSpan> spans = lease_->memory().host->Spans(0, image_bytes_);
    segments_.assign(spans.begin(), spans.end());
  }

  uint64_t image_bytes() const override { return image_bytes_; }
  bool in_place() const override { return true; }
  void Release() override { lease_.reset(); }
  std::vector<ConstHostSpan> segments() const override { return segments_; }

  absl::StatusOr<transport::ServedPiece> Read(uint64_t offset, uint64_t bytes) override {
    uint64_t start = 0;
    for (const ConstHostSpan& segment : segments_) {
      if (offset < start + segment.size()) {
        const uint64_t within = offset - start;
        const uint64_t length = std::min<uint64_t>(bytes, segment.size() - within);
        return transport::ServedPiece{.bytes = segment.subspan(within, length), .hold = nullptr};
      }
      start += segment.size();
    }
    return PastTheEnd(offset, image_bytes_);
  }

 private:
  std::shared_ptr<ReplicaLease> lease_;
  const uint64_t image_bytes_;
  std::vector<ConstHostSpan> segments_;
};

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
    if (offset >= layout_.image_bytes) {
      return PastTheEnd(offset, layout_.image_bytes);
    }
    TC_ASSIGN_OR_RETURN(std::shared_ptr<StagingBuffers::Buffer> buffer, staging_->Acquire(staging_wait_));
    const uint64_t length = std::min({bytes, layout_.image_bytes - offset, uint64_t{buffer->bytes().size()}});
    const HostSpan destination = buffer->bytes().first(length);
    const ChunkRequest request{.chunk = static_cast<uint32_t>(offset / layout_.chunk_bytes),
                               .range = {.offset = offset, .bytes = length},
                               .destination = {&destination, 1}};
    const absl::Time start = SteadyNow();
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

}  // namespace

absl::StatusOr<std::shared_ptr<ServedReplica>> ServeReplica(std::shared_ptr<ReplicaLease> lease,
                                                            DeviceRuntime* devices,
                                                            std::shared_ptr<StagingBuffers> staging,
                                                            absl::Duration staging_wait) {
  if (lease->location().kind == LocationKind::kCpu) {
    return std::make_shared<HostImage>(std::move(lease));
  }
  ImageLayout layout = lease->manifest()->layout();
  TC_ASSIGN_OR_RETURN(std::unique_ptr<ChunkSource> source, OpenReplicaSource(std::move(lease), devices));
  return std::make_shared<StagedImage>(std::move(source), std::move(layout), std::move(staging),
                                       staging_wait);
}

}  // namespace tensorcast::daemon
