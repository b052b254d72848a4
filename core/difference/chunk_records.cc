#include "core/difference/chunk_records.h"

#include "absl/log/check.h"
#include "base/status.h"

namespace tensorcast {
namespace {

// The errors of a chunk do not name its number: the callers do.
absl::Status CheckGeometry(DecoderPath path) {
  DCHECK(!path.empty());
  for (const DifferenceDecoder* const difference : path) {
    if (difference == path.front() || difference->geometry() == path.front()->geometry()) continue;
    return absl::InvalidArgumentError(
        "rebuild the chunk: the differences are for images that differ in size, chunk size or element "
        "widths; no action is needed, the whole target is used instead");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ChunkRecords::Read(DecoderPath path, uint32_t chunk) {
  TC_RETURN_IF_ERROR(CheckGeometry(path));
  const DifferenceGeometry& geometry = path.front()->geometry();
  const uint64_t chunk_bytes = geometry.chunk(chunk).bytes;
  runs_ = geometry.RunsOf(chunk);
  elements_ = 0;
  for (const ElementRun& run : runs_) elements_ += run.bytes / run.width;
  if (ModeOf(path, chunk) == RecordMode::kWhole) {
    return absl::FailedPreconditionError(
        "rebuild the chunk: a difference has no record of the chunk; no action is needed, the whole chunk is "
        "used instead");
  }
  streams_.clear();
  for (const DifferenceDecoder* const difference : path) {
    if (difference->mode(chunk) == RecordMode::kSame) continue;
    if (parts_.size() == streams_.size()) parts_.emplace_back();
    Part& part = parts_[streams_.size()];
    TC_ASSIGN_OR_RETURN(
        const RecordStreams streams,
        part.reader.Read(difference->mode(chunk), difference->RecordBytes(chunk, part.gathered), elements_,
                         chunk_bytes));
    streams_.push_back(streams);
  }
  return absl::OkStatus();
}

absl::Status WrongNumberOfValues() {
  return absl::InvalidArgumentError(
      "rebuild the chunk: the number of values in a record of the difference does not match the record's "
      "steps; no action is needed, the whole chunk is used instead");
}

}  // namespace tensorcast
