#include "daemon/sources/difference_source.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
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
#include "core/replica/transfer_report.h"
#include "daemon/sources/device_rebuild.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/span.h"

namespace tensorcast::daemon {
namespace {

namespace attr = otel::attr;

// Where the differences are leased.
constexpr Location kHostMemory{LocationKind::kCpu};
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

// A chunk that could not be made, or was made wrong: which replica is to blame is looked for at the end.
class WrongChunk {
 public:
  void Note(uint32_t chunk) { chunk_.store(chunk, std::memory_order_relaxed); }
  std::optional<uint32_t> chunk() const {
    const int64_t chunk = chunk_.load(std::memory_order_relaxed);
    return chunk < 0 ? std::nullopt : std::optional<uint32_t>(static_cast<uint32_t>(chunk));
  }

 private:
  std::atomic<int64_t> chunk_ = -1;
};

// What is read, for as long as the source lives.
struct Leased {
  // One of the two.
  std::unique_ptr<ReplicaLease> base;
  std::shared_ptr<const RetiredReplica> advanced;
  std::vector<std::unique_ptr<ReplicaLease>> differences;
  // From the base on a GPU; else null. Its copies end before the base's memory may go.
  std::unique_ptr<CopyQueue> from_gpu;

  const Manifest& base_manifest() const { return base != nullptr ? *base->manifest() : *advanced->manifest; }
  const TraceContext& base_made_by() const { return base != nullptr ? base->made_by() : advanced->made_by; }
  // The image of a base on a GPU; else null.
  DevicePtr base_on_gpu() const {
    if (base != nullptr) return base->memory().device;
    return advanced->storage.device != nullptr ? advanced->storage.device->pointer() : DevicePtr();
  }
  // The bytes of the base: where they lie, or, of a base on a GPU, copied to `destination`.
  absl::StatusOr<Pieces> ReadBase(ByteRange range, std::span<const HostSpan> destination) const {
    if (from_gpu == nullptr) {
      return base != nullptr ? PiecesOf(*base, range.offset, range.bytes)
                             : advanced->storage.host->Spans(range.offset, range.bytes);
    }
    std::vector<CopyQueue::Pending> copies;
    DevicePtr source = base_on_gpu() + range.offset;
    for (const HostSpan piece : destination) {
      TC_ASSIGN_OR_RETURN(copies.emplace_back(), from_gpu->ToHost(piece, source));
      source = source + piece.size();
    }
    for (CopyQueue::Pending& copy : copies) TC_RETURN_IF_ERROR(copy.Await());
    return Pieces(destination.begin(), destination.end());
  }
  // In an advance this chunk is there already, and the ingest compares it where it is.
  bool Stays(const Manifest& target, uint32_t chunk) const {
    return advanced != nullptr && advanced->manifest->digests()[chunk] == target.digests()[chunk];
  }
};

// Any number of fetches at a time.
// Makes each chunk in one pass: the base's bytes go through all differences into the destination, and are
// digested there. If base and target are on GPUs that reach each other, the target's GPU makes the chunks
// (DeviceRebuild) and the ingest digests them there. It has every chunk that all differences of the path
// record; a chunk that one of them leaves out (RecordMode::kWhole) comes from the other sources. A rebuilder
// has scratch memory, so it is kept for the next fetch.
class DifferenceSource final : public ChunkSource {
 public:
  static absl::StatusOr<std::unique_ptr<DifferenceSource>> Open(const RequestContext& context,
                                                                DeviceRuntime* devices,
                                                                std::shared_ptr<const Manifest> target,
                                                                Leased leased,
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
        << "chunks of " << target_->id() << " are made on the host: " << opened.status();
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
          absl::StrCat(what, ": the differences do not contain this chunk; fetch it from a peer"));
    }
    std::optional<ChunkDigests> digests;
    absl::Status rebuilt;
    if (request.device) {
      rebuilt = on_device_->Rebuild(path_, request.chunk, leased_.base_on_gpu() + request.range.offset,
                                    request.device, request.range.bytes);
      // The device's fault, and no replica's.
      if (absl::IsInternal(rebuilt)) return Annotate(rebuilt, what);
    } else {
      const absl::StatusOr<Pieces> base = leased_.ReadBase(request.range, request.destination);
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
                   std::shared_ptr<const Manifest> target, Leased leased,
                   std::vector<DifferenceDecoder> decoders, std::shared_ptr<WrongChunk> wrong)
      : devices_(devices),
        target_(std::move(target)),
        leased_(std::move(leased)),
        decoders_(std::move(decoders)),
        wrong_(std::move(wrong)),
        has_(std::make_shared<Availability>(target_->layout().image_bytes, target_->layout().chunk_bytes)) {
    for (const DifferenceDecoder& decoder : decoders_) path_.push_back(&decoder);
    for (uint32_t chunk = 0; chunk < has_->chunks(); ++chunk) {
      if (leased_.Stays(*target_, chunk)) continue;
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
  const Leased leased_;
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

// Stands before `others_`: gives its one source at the first question, and passes each later question on. A
// wrong chunk ends the source; then the replicas that it was made from are digested again, to find the one
// that is damaged.
class DifferenceProvider final : public SourceProvider {
 public:
  DifferenceProvider(StoreEngine* engine, DeviceRuntime* devices, std::shared_ptr<const Manifest> target,
                     DifferencePath path, std::shared_ptr<SourceProvider> others)
      : engine_(*engine),
        devices_(devices),
        target_(std::move(target)),
        path_(std::move(path)),
        others_(std::move(others)) {}

  void ObserveWaits(const WaitObserver& observer) override { others_->ObserveWaits(observer); }
  void NoteReceived(uint64_t bytes) override { others_->NoteReceived(bytes); }
  bool NoteStall() override { return others_->NoteStall(); }

  absl::StatusOr<MoreSources> Next(const RequestContext& context, std::span<const SourceFailure> ended,
                                   bool needed) override {
    const std::vector<SourceFailure> of_others = NoteEnded(ended);
    if (!std::exchange(asked_, true)) {
      absl::StatusOr<std::unique_ptr<DifferenceSource>> source = Open(context);
      if (source.ok()) {
        Count("applied");
        in_use_ = true;
        whole_ = (*source)->makes_whole();
        MoreSources first;
        if (!whole_) first.look_again = absl::ZeroDuration();
        first.sources.push_back(*std::move(source));
        return first;
      }
      unopened_.push_back({.source = {SourceType::kLocal, std::string(kDifferenceLane), path_.base_id},
                           .status = source.status()});
    }
    // Nothing is faster than memory of this node, so no other source is opened beside it.
    if (in_use_ && whole_ && !needed) return MoreSources();
    others_in_use_ -= static_cast<int>(of_others.size());
    // What the differences do not contain is needed, though their source is in use.
    absl::StatusOr<MoreSources> more = others_->Next(context, of_others, needed || others_in_use_ <= 0);
    if (more.ok()) others_in_use_ += static_cast<int>(more->sources.size());
    return more;
  }

  std::vector<SourceFailure> TakeUnopened() override {
    std::vector<SourceFailure> unopened = std::exchange(unopened_, {});
    std::ranges::move(others_->TakeUnopened(), std::back_inserter(unopened));
    return unopened;
  }

  void Finished(const absl::Status& status, std::span<const SourceFailure> ended) override {
    others_->Finished(status, NoteEnded(ended));
  }

 private:
  static void Count(std::string_view outcome) { otel::metrics::kDifferencePaths.Add(1, {outcome}); }

  // The target has its memory by now.
  absl::StatusOr<std::unique_ptr<DifferenceSource>> Open(const RequestContext& context) {
    TC_RETURN_IF_ERROR(path_.unused);
    Leased leased;
    if (path_.advance != nullptr) leased.advanced = path_.advance->base();
    advanced_ = leased.advanced != nullptr;
    if (!advanced_) {
      absl::StatusOr<std::unique_ptr<ReplicaLease>> base =
          engine_.LeaseArtifact(path_.base_id, path_.base_location);
      if (!base.ok()) {
        Count("base_gone");
        return Annotate(base.status(),
                        absl::StrCat("rebuild from ", path_.base_id, ": the base has gone from ",
                                     path_.base_location.ToString()));
      }
      leased.base = *std::move(base);
    }
    if (const DevicePtr image = leased.base_on_gpu()) {
      leased.from_gpu = std::make_unique<CopyQueue>(devices_, image.device);
    }
    for (const std::shared_ptr<const Manifest>& manifest : path_.differences) {
      absl::StatusOr<std::unique_ptr<ReplicaLease>> difference =
          engine_.LeaseArtifact(manifest->id(), kHostMemory);
      if (!difference.ok()) {
        Count("difference_gone");
        return Annotate(difference.status(), "rebuild: the difference is not in host memory any more");
      }
      leased.differences.push_back(*std::move(difference));
    }
    absl::StatusOr<std::unique_ptr<DifferenceSource>> source =
        DifferenceSource::Open(context, devices_, target_, std::move(leased), wrong_);
    if (absl::IsFailedPrecondition(source.status())) {
      Count("not_brought");  // they name every chunk as one that comes whole
    } else if (!source.ok()) {
      Count("damaged");
      if (CheckDifferences() == Found::kRight) NoteMadeWrong();
    }
    return source;
  }

  std::vector<SourceFailure> NoteEnded(std::span<const SourceFailure> ended) {
    std::vector<SourceFailure> of_others;
    for (const SourceFailure& failure : ended) {
      if (failure.source.lane != kDifferenceLane) {
        of_others.push_back(failure);
        continue;
      }
      in_use_ = false;
      if (const std::optional<uint32_t> chunk = wrong_->chunk(); chunk.has_value()) {
        Count("damaged");
        DropDamaged(*chunk);
      }
    }
    return of_others;
  }

  // The base and the differences were compared with their manifests when they came: one that differs now has
  // rotted. Where none does, a difference was made wrong, and is of no use to other nodes either.
  void DropDamaged(uint32_t chunk) {
    const Found differences = CheckDifferences();
    const Found base = Check(path_.base_id, path_.base_location, chunk);
    // Of a base that is written over it cannot be found out any more.
    if (differences != Found::kRight || base != Found::kRight || advanced_) return;
    LOG(ERROR) << "chunk " << chunk << " of " << target_->id() << ", rebuilt from " << path_.base_id
               << ", is wrong, though base and differences are as they were published, so a difference was "
               << "made of other bytes; put the artifact again without a base";
    NoteMadeWrong();
  }

  void NoteMadeWrong() {
    if (path_.on_made_wrong != nullptr) path_.on_made_wrong();
  }

  // What a comparison with the manifest found. A wrong replica was dropped.
  enum class Found : uint8_t { kRight, kWrong, kUnknown };

  Found CheckDifferences() {
    Found found = Found::kRight;
    for (const std::shared_ptr<const Manifest>& difference : path_.differences) {
      for (uint32_t i = 0; i < difference->layout().chunk_count(); ++i) {
        const Found one = Check(difference->id(), kHostMemory, i);
        if (one == Found::kWrong || found == Found::kRight) found = one;
      }
    }
    return found;
  }

  absl::StatusOr<Digest> DigestOf(const ReplicaLease& lease, ByteRange range) {
    DigestBuilder digest(/*with_blake3=*/false);
    if (lease.location().kind == LocationKind::kGpu) {
      std::vector<std::byte> bytes(range.bytes);
      CopyQueue copies(devices_, lease.location().device);
      TC_ASSIGN_OR_RETURN(CopyQueue::Pending copy,
                          copies.ToHost(bytes, lease.memory().device + range.offset));
      TC_RETURN_IF_ERROR(copy.Await());
      digest.Update(bytes);
    } else {
      for (const ConstHostSpan span : lease.HostSpans(range.offset, range.bytes)) digest.Update(span);
    }
    return digest.FinishChunk().xxh3;
  }

  // Unknown where the replica is gone already, or cannot be read.
  Found Check(const std::string& artifact_id, const Location& location, uint32_t chunk) {
    absl::StatusOr<std::unique_ptr<ReplicaLease>> lease = engine_.LeaseArtifact(artifact_id, location);
    if (!lease.ok()) return Found::kUnknown;
    const Manifest& manifest = *(*lease)->manifest();
    const absl::StatusOr<Digest> digest = DigestOf(**lease, manifest.layout().chunk(chunk));
    if (!digest.ok()) return Found::kUnknown;
    if (*digest == manifest.digests()[chunk].xxh3) return Found::kRight;
    const std::string replica_id = (*lease)->replica_id();
    // The lease would keep the replica from going.
    lease->reset();
    const absl::Status dropped = engine_.Evict(replica_id, /*force=*/true);
    LOG(ERROR) << "drop replica " << replica_id << " of " << artifact_id
               << ", which does not match its manifest: " << dropped << "; check the memory of this node";
    return Found::kWrong;
  }

  StoreEngine& engine_;
  DeviceRuntime* const devices_;
  const std::shared_ptr<const Manifest> target_;
  const DifferencePath path_;
  const std::shared_ptr<SourceProvider> others_;
  const std::shared_ptr<WrongChunk> wrong_ = std::make_shared<WrongChunk>();
  bool asked_ = false;
  bool in_use_ = false;    // its own source
  bool whole_ = false;     // which has every chunk
  bool advanced_ = false;  // the target is written over its base
  int others_in_use_ = 0;
  std::vector<SourceFailure> unopened_;
};

}  // namespace

std::shared_ptr<SourceProvider> MakeDifferenceProvider(StoreEngine* engine, DeviceRuntime* devices,
                                                       std::shared_ptr<const Manifest> target,
                                                       DifferencePath path,
                                                       std::shared_ptr<SourceProvider> others) {
  return std::make_shared<DifferenceProvider>(engine, devices, std::move(target), std::move(path),
                                              std::move(others));
}

}  // namespace tensorcast::daemon
