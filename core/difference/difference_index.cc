#include "core/difference/difference_index.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/byte_codec.h"

namespace tensorcast {
namespace {

constexpr std::string_view kMagic = "TCDF";
constexpr uint16_t kVersion = 1;

template <typename... Why>
absl::Status Refuse(const Why&... why) {
  return absl::InvalidArgumentError(absl::StrCat("read the index of a difference: ", why...,
                                                 "; no action is needed, the whole target is used instead"));
}

bool HasRecord(RecordMode mode) { return mode != RecordMode::kSame && mode != RecordMode::kWhole; }

}  // namespace

std::string EncodeIndex(const DifferenceIndex& index, const DifferenceGeometry& geometry) {
  ByteWriter out;
  out.Put(kMagic).Put(kVersion).Put(geometry.image_bytes).Put(geometry.chunk_bytes);
  for (size_t chunk = 0; chunk < index.modes.size(); ++chunk) {
    out.Put(static_cast<uint8_t>(index.modes[chunk])).Put(index.record_bytes[chunk]);
  }
  return out.Take();
}

absl::StatusOr<DifferenceIndex> DecodeIndex(std::string_view bytes, const DifferenceGeometry& geometry,
                                            uint64_t records_bytes) {
  ByteReader in(bytes);
  if (in.GetBytes(kMagic.size()) != kMagic) return Refuse("the index has the magic of another format");
  if (const auto version = in.Get<uint16_t>(); version != kVersion) {
    return Refuse("the index has format ", version, ", but this build knows only format ", kVersion);
  }
  const auto image_bytes = in.Get<uint64_t>();
  const auto chunk_bytes = in.Get<uint64_t>();
  if (image_bytes != geometry.image_bytes || chunk_bytes != geometry.chunk_bytes) {
    return Refuse("the index describes an image of ", image_bytes, " bytes in chunks of ", chunk_bytes,
                  " bytes, but the target has ", geometry.image_bytes, " bytes in chunks of ",
                  geometry.chunk_bytes, " bytes");
  }
  // Compared before memory is taken for the entries.
  constexpr size_t kEntryBytes = sizeof(RecordMode) + sizeof(uint32_t);
  const uint64_t chunks = geometry.chunk_count();
  if (in.remaining() != chunks * kEntryBytes) {
    return Refuse("the index has ", in.remaining(), " bytes for the entries of ", chunks,
                  " chunks, which need ", chunks * kEntryBytes, " bytes");
  }
  DifferenceIndex index;
  index.modes.reserve(chunks);
  index.record_bytes.reserve(chunks);
  uint64_t sum = 0;
  for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
    const auto mode = index.modes.emplace_back(static_cast<RecordMode>(in.Get<uint8_t>()));
    const uint32_t record = index.record_bytes.emplace_back(in.Get<uint32_t>());
    if (RecordModeName(mode).empty()) return Refuse("chunk ", chunk, " has an unknown mode");
    // An encoder takes kWhole for a record that is not shorter than the chunk.
    if (HasRecord(mode) != (record > 0) || record >= geometry.chunk_bytes) {
      return Refuse("chunk ", chunk, " has mode ", RecordModeName(mode), " and a record of ", record,
                    " bytes, ",
                    HasRecord(mode) == (record > 0) ? "but a record must be shorter than a chunk"
                    : HasRecord(mode)               ? "but a record of this mode must have bytes"
                                                    : "but this mode has no records");
    }
    sum += record;
  }
  // No overflow: at most 2^32 records of less than 2^32 bytes.
  if (sum != records_bytes) {
    return Refuse("the index lists ", sum, " bytes of records, but the tensor of records has ", records_bytes,
                  " bytes");
  }
  return index;
}

}  // namespace tensorcast
