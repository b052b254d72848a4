#include "core/ingest/staying_chunks.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/artifact/layout.h"
#include "core/memory/host_pool.h"
#include "core/replica/availability.h"
#include "core/replicas/replica_table.h"
#include "core/source/device_source.h"

namespace tensorcast {
namespace {

// Reads in the replica's own host memory, where these chunks stay.
class StayingChunks final : public ChunkSource {
 public:
  StayingChunks(SourceInfo info, std::shared_ptr<const RetiredReplica> base,
                std::shared_ptr<const Availability> has, int threads)
      : info_(std::move(info)), base_(std::move(base)), has_(std::move(has)), threads_(threads) {}

  const SourceInfo& info() const override { return info_; }
  int max_concurrency() const override { return threads_; }
  std::shared_ptr<const Availability> availability() const override { return has_; }
  bool in_place() const override { return true; }

  std::vector<ConstHostSpan> HostSpans(ByteRange range) const override {
    if (!has_->HasRange(range.offset, range.bytes)) return {};
    const std::vector<HostSpan> spans = base_->storage.host->Spans(range.offset, range.bytes);
    return {spans.begin(), spans.end()};
  }

  absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext&,
                                                    const ChunkRequest& request) override {
    return absl::FailedPreconditionError(
        absl::StrCat(DescribeFetch(info_, request),
                     ": this chunk will be overwritten; fetch the chunk from another source"));
  }

 private:
  const SourceInfo info_;
  const std::shared_ptr<const RetiredReplica> base_;
  const std::shared_ptr<const Availability> has_;
  const int threads_;
};

// Gives its source once. After a wrong chunk the chain asks again and gets none: what is missing is then
// brought from the next providers.
class StayingProvider final : public NodeProvider {
 public:
  StayingProvider(DeviceRuntime* devices, SourceInfo info, std::shared_ptr<const Advance> advance,
                  std::shared_ptr<const Availability> has, int threads)
      : devices_(devices),
        info_(std::move(info)),
        advance_(std::move(advance)),
        has_(std::move(has)),
        threads_(threads) {}

  Given Next(const RequestContext&) override {
    Given given;
    if (std::exchange(given_, true)) return given;
    absl::StatusOr<std::unique_ptr<ChunkSource>> source = Open();
    if (!source.ok()) {
      unopened_.push_back({.source = info_, .status = source.status()});
      return given;
    }
    given.whole = has_->complete();
    given.sources.push_back(*std::move(source));
    return given;
  }
  std::vector<SourceFailure> TakeUnopened() override { return std::exchange(unopened_, {}); }

 private:
  // A GPU digests its chunks where they are: their source is their place.
  absl::StatusOr<std::unique_ptr<ChunkSource>> Open() const {
    std::shared_ptr<const RetiredReplica> base = advance_->base();
    if (base->storage.device == nullptr) {
      return std::make_unique<StayingChunks>(info_, std::move(base), has_, threads_);
    }
    const DevicePtr image = base->storage.device->pointer();
    return MakeDeviceSource(info_, devices_, image,
                            std::make_shared<std::shared_ptr<const RetiredReplica>>(std::move(base)),
                            threads_, has_, /*in_place=*/true);
  }

  DeviceRuntime* const devices_;
  const SourceInfo info_;
  const std::shared_ptr<const Advance> advance_;
  const std::shared_ptr<const Availability> has_;
  const int threads_;
  bool given_ = false;
  std::vector<SourceFailure> unopened_;
};

}  // namespace

SourceInfo AdvanceSourceInfo(const Advance& advance) {
  return {.type = SourceType::kLocal, .lane = std::string(kAdvanceLane), .name = advance.base_id()};
}

std::unique_ptr<NodeProvider> FindStayingChunks(DeviceRuntime* devices, int threads,
                                                const IngestRequest& request, ProgressTracker& progress) {
  const std::shared_ptr<const RetiredReplica> base = request.advance->base();
  if (base == nullptr) return nullptr;  // nothing is in its place before the commit
  const ImageLayout& layout = request.layout();
  auto has = std::make_shared<Availability>(layout.image_bytes, layout.chunk_bytes);
  for (uint32_t chunk = 0; chunk < has->chunks(); ++chunk) {
    if (base->manifest->digests()[chunk] == request.manifest->digests()[chunk]) has->Add(chunk);
  }
  has->End(absl::OkStatus());
  SourceInfo info = AdvanceSourceInfo(*request.advance);
  info.made_by = base->made_by;
  info.replica_id = base->replica_id;
  if (has->count() == 0) {
    auto clock = std::make_shared<StageClock>(info);
    clock->Leave(/*loss=*/std::nullopt, absl::OkStatus(), /*lost_chunks=*/0);
    progress.AddSource(std::move(clock));
    return nullptr;
  }
  return std::make_unique<StayingProvider>(devices, std::move(info), request.advance, std::move(has),
                                           threads);
}

}  // namespace tensorcast
