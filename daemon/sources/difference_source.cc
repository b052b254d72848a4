#include "daemon/sources/difference_source.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/log/log.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "core/artifact/digest.h"
#include "core/device/copy_queue.h"
#include "core/difference/change_lists.h"
#include "core/difference/chunk_rebuilder.h"
#include "daemon/sources/device_rebuild.h"
#include "otel/api/span.h"

namespace tensorcast::daemon {
namespace {

namespace attr = otel::attr;

// More threads than this gain nothing on one memory bus.
constexpr int kMaxThreads = 4;
// The part of a chunk for the lists of its changes: enough for 16 % of a chunk of bf16, in one part.
constexpr uint64_t kListsPart = 4;

using Pieces = std::vector<std::span<std::byte>>;

// The codec reads pieces that it does not write to.
Pieces PiecesOf(const ReplicaLease& lease, uint64_t offset, uint64_t bytes) {
  Pieces pieces;
  for (const ConstHostSpan span : lease.HostSpans(offset, bytes)) {
    pieces.emplace_back(const_cast<std::byte*>(span.data()), span.size());
  }
  return pieces;
}

// The bytes of the base: where they lie, or, of a base on a GPU, copied to `destination`.
absl::StatusOr<Pieces> ReadBase(const LeasedPath& leased, ByteRange range,
                                std::span<const HostSpan> destination) {
  if (leased.from_gpu == nullptr) {
    return leased.base != nullptr ? PiecesOf(*leased.base, range.offset, range.bytes)
                                  : leased.advanced->storage.host->Spans(range.offset, range.bytes);
  }
  std::vector<CopyQueue::Pending> copies;
  DevicePtr source = leased.base_on_gpu() + range.offset;
  for (const HostSpan piece : destination) {
    TC_ASSIGN_OR_RETURN(copies.emplace_back(), leased.from_gpu->ToHost(piece, source));
    source = source + piece.size();
  }
  for (CopyQueue::Pending& copy : copies) TC_RETURN_IF_ERROR(copy.Await());
  return Pieces(destination.begin(), destination.end());
}

// In an advance this chunk is there already, and the ingest compares it where it is.
bool Stays(const LeasedPath& leased, const Manifest& target, uint32_t chunk) {
  return leased.advanced != nullptr && leased.advanced->manifest->digests()[chunk] == target.digests()[chunk];
}

// Any number of fetches at a time.
// Makes each chunk in one pass: the base's bytes go through all differences into the destination, and are
// digested there. If base and target are on GPUs that reach each other, the target's GPU makes the chunks
// (DeviceRebuild) and the ingest digests them there. A rebuilder has scratch memory, so it is kept for the
// next fetch.
class DifferenceSource final : public ChunkSource {
 public:
  static absl::StatusOr<std::unique_ptr<DifferenceSource>> Open(const RequestContext& context,
                                                                DeviceRuntime* devices,
                                                                std::shared_ptr<const Manifest> target,
                                                                LeasedPath leased,
                                                                std::shared_ptr<WrongChunk> wrong) {
    const ImageLayout& layout = target->layout();
    const DifferenceGeometry geometry = GeometryOf(layout);
    std::vector<DifferenceDecoder> decoders;
    for (const std::unique_ptr<ReplicaLease>& difference : leased.differences) {
      const ImageLayout& image = difference->manifest()->layout();
      absl::StatusOr<DifferenceDecoder> decoder =
          DifferenceDecoder::Open(image, PiecesOf(*difference, 0, image.image_bytes), geometry);
      if (!decoder.ok()) {
        return Annotate(decoder.status(), absl::StrCat("open difference ", difference->manifest()->id()));
      }
      decoders.push_back(*std::move(decoder));
    }
    auto source = std::unique_ptr<DifferenceSource>(new DifferenceSource(
        context, devices, std::move(target), std::move(leased), std::move(decoders), std::move(wrong)));
    if (source->has_->count() == 0) {
      return absl::FailedPreconditionError(
          "open the differences: the differences contain no chunk; all chunks come from the other sources");
    }
    return source;
  }

  ~DifferenceSource() override {
    span_.SetAttribute(attr::kSizeBytes, bytes_.load());
    span_.SetAttribute(attr::kChunks, chunks_.load());
    span_.End();
  }

  // With the chunks that stay in an advance it has all.
  bool makes_whole() const { return makes_whole_; }
  const SourceInfo& info() const override { return info_; }
  int max_concurrency() const override {
    return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
  }
  std::shared_ptr<const Availability> availability() const override {
    return has_->complete() ? nullptr : has_;
  }

  bool computes_chunks() const override { return true; }
  void NoteWrong(uint32_t chunk) override { wrong_->Note(chunk); }

  // Where the target is written over its base, the old chunk is in the place of the new one: the host makes
  // the new one elsewhere.
  absl::Status PrepareDevice(DevicePtr image, uint64_t bytes) override {
    const DevicePtr base = leased_.base_on_gpu();
    if (!base || base == image || leased_.advanced != nullptr) {
      return ChunkSource::PrepareDevice(image, bytes);
    }
    const uint64_t list_bytes =
        std::max<uint64_t>(target_->layout().chunk_bytes / kListsPart, ChangeLists::kMinRoomBytes);
    absl::StatusOr<std::unique_ptr<DeviceRebuild>> opened =
        DeviceRebuild::Open(devices_, base.device, image.device, list_bytes);
    LOG_IF(WARNING, !opened.ok() && !absl::IsUnimplemented(opened.status()))
        << "rebuild chunks of " << target_->id() << " on a GPU: " << opened.status()
        << "; the host rebuilds the chunks instead";
    TC_RETURN_IF_ERROR(opened.status());
    on_device_ = *std::move(opened);
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext& context,
                                                    const ChunkRequest& request) override {
    if (!request.device) TC_RETURN_IF_ERROR(CheckDestination(info_, request));
    TC_RETURN_IF_ERROR(CheckRange(info_, request, target_->layout().image_bytes));
    const std::string what = DescribeFetch(info_, request);
    TC_RETURN_IF_ERROR(context.Check(what));
    if (request.range != target_->layout().chunk(request.chunk) || !has_->Has(request.chunk)) {
      return absl::FailedPreconditionError(
          absl::StrCat(what, ": the differences do not contain this chunk; fetch the chunk from a peer"));
    }
    std::optional<ChunkDigests> digests;
    absl::Status rebuilt;
    if (request.device) {
      rebuilt = on_device_->Rebuild(path_, request.chunk, leased_.base_on_gpu() + request.range.offset,
                                    request.device, request.range.bytes);
      // The device's fault, and no replica's.
      if (absl::IsInternal(rebuilt)) return Annotate(rebuilt, what);
    } else {
      const absl::StatusOr<Pieces> base = ReadBase(leased_, request.range, request.destination);
      if (!base.ok()) return Annotate(base.status(), absl::StrCat(what, ": read the base"));
      DigestBuilder digest(request.blake3);
      std::unique_ptr<ChunkRebuilder> rebuilder = TakeRebuilder();
      rebuilt = rebuilder->Rebuild(path_, request.chunk, *base, request.destination, &digest);
      GiveBack(std::move(rebuilder));
      digests = digest.FinishChunk();
    }
    if (!rebuilt.ok()) {
      wrong_->Note(request.chunk);
      return absl::DataLossError(absl::StrCat(what, ": ", rebuilt.message()));
    }
    bytes_ += request.range.bytes;
    ++chunks_;
    return digests;
  }

 private:
  DifferenceSource(const RequestContext& context, DeviceRuntime* devices,
                   std::shared_ptr<const Manifest> target, LeasedPath leased,
                   std::vector<DifferenceDecoder> decoders, std::shared_ptr<WrongChunk> wrong)
      : devices_(devices),
        target_(std::move(target)),
        leased_(std::move(leased)),
        decoders_(std::move(decoders)),
        wrong_(std::move(wrong)),
        has_(std::make_shared<Availability>(target_->layout().image_bytes, target_->layout().chunk_bytes)) {
    for (const DifferenceDecoder& decoder : decoders_) path_.push_back(&decoder);
    for (uint32_t chunk = 0; chunk < has_->chunks(); ++chunk) {
      if (Stays(leased_, *target_, chunk)) continue;
      const bool makes = ModeOf(path_, chunk) != RecordMode::kWhole;
      if (makes) has_->Add(chunk);
      makes_whole_ = makes_whole_ && makes;
    }
    has_->End(absl::OkStatus());
    const ReplicaLease& last = *leased_.differences.back();
    info_.type = SourceType::kLocal;
    info_.lane = kDifferenceLane;
    info_.name = leased_.base_manifest().id();
    info_.made_by = last.made_by();
    // Not the base's: its equal chunks may be a source of the same ingest.
    info_.replica_id = last.replica_id();
    std::vector<otel::SpanLink> links = {{.context = leased_.base_made_by()}};
    for (const auto& difference : leased_.differences) links.push_back({.context = difference->made_by()});
    std::erase_if(links, [](const otel::SpanLink& link) { return !link.context.IsValid(); });
    span_ = otel::Span("Difference/Apply", context, {{attr::kArtifactId, target_->id()}}, {.links = links});
  }

  std::unique_ptr<ChunkRebuilder> TakeRebuilder() {
    absl::MutexLock lock(&mutex_);
    if (idle_.empty()) return std::make_unique<ChunkRebuilder>();
    std::unique_ptr<ChunkRebuilder> rebuilder = std::move(idle_.back());
    idle_.pop_back();
    return rebuilder;
  }
  void GiveBack(std::unique_ptr<ChunkRebuilder> rebuilder) {
    absl::MutexLock lock(&mutex_);
    idle_.push_back(std::move(rebuilder));
  }

  DeviceRuntime* const devices_;
  const std::shared_ptr<const Manifest> target_;
  const LeasedPath leased_;
  std::unique_ptr<DeviceRebuild> on_device_;       // from leased memory; null: chunks are made on the host
  const std::vector<DifferenceDecoder> decoders_;  // of leased memory
  std::vector<const DifferenceDecoder*> path_;
  const std::shared_ptr<WrongChunk> wrong_;
  const std::shared_ptr<Availability> has_;
  bool makes_whole_ = true;
  SourceInfo info_;
  otel::Span span_;
  std::atomic<uint64_t> bytes_ = 0;
  std::atomic<uint32_t> chunks_ = 0;
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<ChunkRebuilder>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

DevicePtr LeasedPath::base_on_gpu() const {
  if (base != nullptr) return base->memory().device;
  return advanced->storage.device != nullptr ? advanced->storage.device->pointer() : DevicePtr();
}

absl::StatusOr<OpenedDifferences> OpenDifferences(const RequestContext& context, DeviceRuntime* devices,
                                                  std::shared_ptr<const Manifest> target, LeasedPath leased,
                                                  std::shared_ptr<WrongChunk> wrong) {
  TC_ASSIGN_OR_RETURN(
      std::unique_ptr<DifferenceSource> source,
      DifferenceSource::Open(context, devices, std::move(target), std::move(leased), std::move(wrong)));
  const bool whole = source->makes_whole();
  return OpenedDifferences{.source = std::move(source), .whole = whole};
}

}  // namespace tensorcast::daemon
