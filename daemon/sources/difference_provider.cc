#include "daemon/sources/difference_provider.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "absl/log/log.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/artifact/digest.h"
#include "core/device/copy_queue.h"
#include "core/replica/transfer_report.h"
#include "daemon/sources/difference_source.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast::daemon {
namespace {

// Where the differences are leased.
constexpr Location kHostMemory{LocationKind::kCpu};

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
      absl::StatusOr<OpenedDifferences> source = Open(context);
      if (source.ok()) {
        Count("applied");
        in_use_ = true;
        whole_ = source->whole;
        MoreSources first;
        if (!whole_) first.look_again = absl::ZeroDuration();
        first.sources.push_back(std::move(source->source));
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
  absl::StatusOr<OpenedDifferences> Open(const RequestContext& context) {
    TC_RETURN_IF_ERROR(path_.unused);
    TC_ASSIGN_OR_RETURN(LeasedPath leased, Lease());
    absl::StatusOr<OpenedDifferences> source =
        OpenDifferences(context, devices_, target_, std::move(leased), wrong_);
    if (absl::IsFailedPrecondition(source.status())) {
      Count("not_brought");  // they name every chunk as one that comes whole
    } else if (!source.ok()) {
      Count("damaged");
      if (CheckDifferences() == Found::kRight) NoteMadeWrong();
    }
    return source;
  }

  absl::StatusOr<LeasedPath> Lease() {
    LeasedPath leased;
    if (path_.advance != nullptr) leased.advanced = path_.advance->base();
    advanced_ = leased.advanced != nullptr;
    if (!advanced_) {
      absl::StatusOr<std::unique_ptr<ReplicaLease>> base =
          engine_.LeaseArtifact(path_.base_id, path_.base_location);
      if (!base.ok()) {
        Count("base_gone");
        return Annotate(base.status(),
                        absl::StrCat("rebuild from ", path_.base_id, ": the base is no longer at ",
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
        return Annotate(difference.status(), "rebuild: the difference is no longer in host memory");
      }
      leased.differences.push_back(*std::move(difference));
    }
    return leased;
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
    if (MakesRightOnHost(chunk)) {
      LOG(ERROR) << "chunk " << chunk << " of " << target_->id()
                 << " was wrong when a GPU rebuilt the chunk from " << path_.base_id
                 << ", and is right when the host rebuilds the chunk; check the GPUs of this "
                 << "node and their links";
      return;
    }
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

  // Whether the host makes the chunk of the same base and differences right. A new source makes its chunks on
  // the host, as long as it is given no memory of a GPU.
  bool MakesRightOnHost(uint32_t chunk) {
    absl::StatusOr<LeasedPath> leased = Lease();
    if (!leased.ok()) return false;
    const RequestContext context;
    absl::StatusOr<OpenedDifferences> opened =
        OpenDifferences(context, devices_, target_, *std::move(leased), std::make_shared<WrongChunk>());
    if (!opened.ok()) return false;
    const ByteRange range = target_->layout().chunk(chunk);
    std::vector<std::byte> bytes(range.bytes);
    const HostSpan destination(bytes);
    const absl::StatusOr<std::optional<ChunkDigests>> digests =
        opened->source->Fetch(context, {.chunk = chunk, .range = range, .destination = {&destination, 1}});
    return digests.ok() && digests->has_value() && (*digests)->xxh3 == target_->digests()[chunk].xxh3;
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
