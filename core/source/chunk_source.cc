#include "core/source/chunk_source.h"

#include "absl/strings/str_cat.h"

namespace tensorcast {

std::string DescribeFetch(const SourceInfo& info, const ChunkRequest& request) {
  return absl::StrCat("fetch chunk ", request.chunk, " from ", info.name);
}

absl::Status CheckDestination(const SourceInfo& info, const ChunkRequest& request) {
  uint64_t destination_bytes = 0;
  for (const HostSpan& span : request.destination) destination_bytes += span.size();
  if (destination_bytes == request.range.bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      DescribeFetch(info, request), ": the destination has ", destination_bytes, " bytes for a range of ",
      request.range.bytes, " bytes; give a destination of the range's size"));
}

absl::Status CheckRange(const SourceInfo& info, const ChunkRequest& request, uint64_t image_bytes) {
  const ByteRange& range = request.range;
  if (range.offset <= image_bytes && range.bytes <= image_bytes - range.offset) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(DescribeFetch(info, request), ": the range of ", range.bytes,
                                            " bytes at offset ", range.offset, " is not inside the image of ",
                                            image_bytes, " bytes; ask for a range inside the image"));
}

}  // namespace tensorcast
