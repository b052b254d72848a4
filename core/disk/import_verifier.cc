#include "core/disk/import_verifier.h"

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/source/digest_chunks.h"
#include "core/source/object_source.h"

namespace tensorcast {
namespace {

bool Overlap(const ObjectExtent& extent, const ByteRange& range) {
  return extent.image_offset < range.offset + range.bytes &&
         range.offset < extent.image_offset + extent.bytes;
}

}  // namespace

std::string DescribeObjects(const ByteRange& range, const std::vector<ObjectExtent>& extents,
                            const ObjectReaders& objects) {
  std::set<uint32_t> used;
  for (const ObjectExtent& extent : extents) {
    if (Overlap(extent, range)) used.insert(extent.object);
  }
  if (used.empty()) return "no file";
  const std::string& first = objects[*used.begin()]->identity().uri;
  if (used.size() == 1) return first;
  return absl::StrCat(first, " and ", used.size() - 1, used.size() == 2 ? " other file" : " other files");
}

absl::StatusOr<std::optional<uint32_t>> FindDifferentChunk(const RequestContext& context, ChunkSource& source,
                                                           const Manifest& manifest) {
  const uint32_t count = manifest.layout().chunk_count();
  std::atomic<uint32_t> different = count;  // the first of those that were found; none yet
  // Without BLAKE3: this finds accidents, for which XXH3 is enough. The callback runs on several threads, and
  // false ends the reading. Of the chunks that the threads find, the first of the image stays.
  TC_RETURN_IF_ERROR(DigestChunks(context, source, manifest.layout(), /*with_blake3=*/false,
                                  [&](uint32_t chunk, const ChunkDigests& digests) {
                                    if (digests.xxh3 == manifest.digests()[chunk].xxh3) return true;
                                    uint32_t first = different;
                                    while (chunk < first && !different.compare_exchange_weak(first, chunk)) {
                                    }
                                    return false;
                                  }));
  return different == count ? std::nullopt : std::make_optional(different.load());
}

absl::Status CompareAgain(const RequestContext& context, const ObjectReaders& objects,
                          const std::vector<ObjectExtent>& extents, const Manifest& manifest) {
  // The objects are open since the first pass: their readers also fail where a file's version has changed.
  const ImageLayout& layout = manifest.layout();
  TC_ASSIGN_OR_RETURN(const std::unique_ptr<ChunkSource> source,
                      MakeObjectSource(objects, extents, layout.image_bytes));
  TC_ASSIGN_OR_RETURN(const std::optional<uint32_t> different,
                      FindDifferentChunk(context, *source, manifest));
  if (!different.has_value()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(
      "compare ", DescribeObjects(layout.chunk(*different), extents, objects), ": chunk ", *different,
      " of the image had other bytes at the second read; import the model again when no process writes to "
      "its files"));
}

}  // namespace tensorcast
