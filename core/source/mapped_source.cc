#include "core/source/mapped_source.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace tensorcast {
namespace {

// Between two looks at the context: some 100 us of copying.
constexpr uint64_t kStepBytes = uint64_t{1} << 20;

// Immutable once made, hence any number of fetches at a time.
class MappedSource final : public ChunkSource {
 public:
  MappedSource(SourceInfo info, const std::vector<ConstHostSpan>& image, std::shared_ptr<void> keep_alive,
               int max_concurrency)
      : keep_alive_(std::move(keep_alive)),
        info_(std::move(info)),
        max_concurrency_(std::max(1, max_concurrency)) {
    for (ConstHostSpan span : image) {
      if (span.empty()) continue;
      pieces_.push_back({image_bytes_, span});
      image_bytes_ += span.size();
    }
  }

  const SourceInfo& info() const override { return info_; }
  int max_concurrency() const override { return max_concurrency_; }

  absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext& context,
                                                    const ChunkRequest& request) override {
    TC_RETURN_IF_ERROR(CheckDestination(info_, request));
    TC_RETURN_IF_ERROR(CheckRange(info_, request, image_bytes_));
    const std::string what = DescribeFetch(info_, request);
    DigestBuilder digest(request.blake3);
    uint64_t offset = request.range.offset;
    for (HostSpan destination : request.destination) {
      while (!destination.empty()) {
        TC_RETURN_IF_ERROR(context.Check(what));
        const ConstHostSpan source = PieceAt(offset, std::min<uint64_t>(kStepBytes, destination.size()));
        digest.UpdateAndCopy(destination.data(), source);
        destination = destination.subspan(source.size());
        offset += source.size();
      }
    }
    return digest.FinishChunk();
  }

 private:
  struct Piece {
    uint64_t offset;  // in the image
    ConstHostSpan bytes;
  };

  // What lies at `offset` in one place: at least one byte, at most `most`.
  ConstHostSpan PieceAt(uint64_t offset, uint64_t most) const {
    const Piece& piece = *std::prev(std::ranges::upper_bound(pieces_, offset, {}, &Piece::offset));
    const uint64_t skip = offset - piece.offset;
    return piece.bytes.subspan(skip, std::min<uint64_t>(most, piece.bytes.size() - skip));
  }

  const std::shared_ptr<void> keep_alive_;  // first: what the pieces point into goes last
  const SourceInfo info_;
  const int max_concurrency_;
  std::vector<Piece> pieces_;
  uint64_t image_bytes_ = 0;
};

}  // namespace

std::unique_ptr<ChunkSource> MakeMappedSource(SourceInfo info, const std::vector<ConstHostSpan>& image,
                                              std::shared_ptr<void> keep_alive, int max_concurrency) {
  return std::make_unique<MappedSource>(std::move(info), image, std::move(keep_alive), max_concurrency);
}

}  // namespace tensorcast
