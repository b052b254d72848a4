#include "core/source/object_source.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/source/bounce_buffers.h"
#include "core/source/chunk_reader.h"

namespace tensorcast {
namespace {

// One fetch: the chunk's range is cut into pieces by object and destination, a reader reads and digests them
// in order, and then each object that gave bytes is asked whether it is still the same version.
class ObjectSource final : public ChunkSource {
 public:
  ObjectSource(ObjectReaders objects, ObjectExtents extents, SourceInfo info, const ObjectTraits& traits)
      : info_(std::move(info)),
        max_concurrency_(std::max(1, traits.max_concurrency)),
        read_bytes_(std::max(AlignDown(traits.read_bytes), kBlockBytes)),
        objects_(std::move(objects)),
        extents_(std::move(extents)),
        // A fetch uses one buffer at a time, so as many are kept as fetches run at once.
        buffers_(read_bytes_, max_concurrency_) {}

  const SourceInfo& info() const override { return info_; }
  int max_concurrency() const override { return max_concurrency_; }

  absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext& context,
                                                    const ChunkRequest& request) override {
    const SteadyTime begun = SteadyNow();
    absl::StatusOr<ChunkDigests> digests = Read(context, request);
    // A caller that lost interest says nothing about the objects.
    const bool counts = !objects_.empty() && (digests.ok() || context.Check("read").ok());
    if (counts) objects_.front()->NoteChunk(SteadyNow() - begun, request.range.bytes, digests.ok());
    if (!digests.ok()) return digests.status();
    return *digests;
  }

 private:
  absl::StatusOr<ChunkDigests> Read(const RequestContext& context, const ChunkRequest& request) {
    TC_RETURN_IF_ERROR(CheckRange(info_, request, extents_.image_bytes()));
    TC_RETURN_IF_ERROR(CheckDestination(info_, request));
    const std::vector<ObjectPiece> pieces = extents_.Cut(request.range, request.destination);
    ChunkReader reader(context, objects_, &buffers_, read_bytes_, request.blake3);
    TC_RETURN_IF_ERROR(reader.Read(DescribeFetch(info_, request), pieces));
    TC_RETURN_IF_ERROR(CheckUnchanged(context, pieces));
    return reader.digests();
  }

  // After the reads: bytes that were written over in the meantime are not passed on as the object's.
  absl::Status CheckUnchanged(const RequestContext& context, std::span<const ObjectPiece> pieces) const {
    std::set<uint32_t> touched;
    for (const ObjectPiece& piece : pieces) {
      if (!piece.zeros()) touched.insert(piece.object);
    }
    for (const uint32_t object : touched) TC_RETURN_IF_ERROR(objects_[object]->CheckUnchanged(context));
    return absl::OkStatus();
  }

  const SourceInfo info_;
  const int max_concurrency_;
  const uint64_t read_bytes_;
  const ObjectReaders objects_;
  const ObjectExtents extents_;
  BounceBuffers buffers_;
};

std::string NameOf(const ObjectReaders& objects) {
  if (objects.empty()) return "no object";
  const std::string& first = objects.front()->identity().uri;
  return objects.size() == 1 ? first : absl::StrCat(first, " and ", objects.size() - 1, " more");
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChunkSource>> MakeObjectSource(ObjectReaders objects,
                                                              std::vector<ObjectExtent> extents,
                                                              uint64_t image_bytes, SourceInfo info) {
  // The objects of a source are of one kind: the first speaks for all.
  const ObjectTraits traits = objects.empty() ? ObjectTraits() : objects.front()->traits();
  // A caller that knows better gives the whole description: the three belong together.
  if (info.name.empty()) {
    info.type = traits.type;
    info.lane = traits.lane;
    info.name = NameOf(objects);
  }
  std::vector<uint64_t> object_bytes;
  for (const auto& object : objects) object_bytes.push_back(object->identity().bytes);
  TC_ASSIGN_OR_RETURN(ObjectExtents map,
                      ObjectExtents::Create(std::move(extents), image_bytes, object_bytes));
  return std::make_unique<ObjectSource>(std::move(objects), std::move(map), std::move(info), traits);
}

}  // namespace tensorcast
