#include "core/difference/difference_decoder.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/difference/difference_index.h"

namespace tensorcast {
namespace {

absl::Status Refuse(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("read the image of a difference: ", what,
                                                 "; no action is needed, the whole target is used instead"));
}

}  // namespace

absl::StatusOr<DifferenceDecoder> DifferenceDecoder::Open(const ImageLayout& layout,
                                                          std::span<const std::span<std::byte>> image,
                                                          DifferenceGeometry target) {
  if (layout.tensors.size() != 2) {
    return Refuse(absl::StrCat("the layout has ", layout.tensors.size(),
                               " tensors, but a difference has two tensors, index and records"));
  }
  const Tensor& index_tensor = layout.tensors[0];
  const Tensor& records_tensor = layout.tensors[1];
  DifferenceDecoder decoder;
  uint64_t bytes = 0;
  for (const std::span<std::byte> piece : image) {
    bytes += piece.size();
    decoder.image_.emplace_back(piece);
  }
  if (bytes < layout.image_bytes) {
    return Refuse(
        absl::StrCat("the image has ", bytes, " bytes, but its layout needs ", layout.image_bytes, " bytes"));
  }
  std::vector<std::byte> gathered;
  const auto index_bytes = decoder.Bytes({index_tensor.offset, index_tensor.nbytes}, gathered);
  TC_ASSIGN_OR_RETURN(DifferenceIndex index,
                      DecodeIndex({reinterpret_cast<const char*>(index_bytes.data()), index_bytes.size()},
                                  target, records_tensor.nbytes));
  decoder.geometry_ = std::make_shared<const DifferenceGeometry>(std::move(target));
  decoder.modes_ = std::move(index.modes);
  // The index gives sizes alone. DecodeIndex has compared their sum with the tensor, so no record lies
  // outside of it.
  uint64_t begin = records_tensor.offset;
  for (const uint32_t record_bytes : index.record_bytes) {
    decoder.record_begins_.push_back(begin);
    begin += record_bytes;
  }
  decoder.record_begins_.push_back(begin);
  return decoder;
}

ByteRange DifferenceDecoder::record(uint32_t chunk) const {
  DCHECK_LT(chunk, modes_.size());
  return {record_begins_[chunk], record_begins_[chunk + 1] - record_begins_[chunk]};
}

std::span<const std::byte> DifferenceDecoder::RecordBytes(uint32_t chunk,
                                                          std::vector<std::byte>& gathered) const {
  return Bytes(record(chunk), gathered);
}

std::span<const std::byte> DifferenceDecoder::Bytes(ByteRange range, std::vector<std::byte>& gathered) const {
  // Bytes that lie in one piece are used in place. Only what crosses pieces is copied.
  gathered.clear();
  for (std::span<const std::byte> piece : image_) {
    if (range.offset >= piece.size()) {
      range.offset -= piece.size();
      continue;
    }
    piece = piece.subspan(range.offset);
    if (gathered.empty() && piece.size() >= range.bytes) return piece.first(range.bytes);
    piece = piece.first(std::min<uint64_t>(piece.size(), range.bytes));
    gathered.insert(gathered.end(), piece.begin(), piece.end());
    range = {0, range.bytes - piece.size()};
    if (range.bytes == 0) break;
  }
  return gathered;
}

RecordMode ModeOf(DecoderPath path, uint32_t chunk) {
  RecordMode mode = RecordMode::kSame;
  for (const DifferenceDecoder* const difference : path) {
    const RecordMode own = difference->mode(chunk);
    if (own == RecordMode::kWhole) return own;
    if (own != RecordMode::kSame) mode = own;
  }
  return mode;
}

}  // namespace tensorcast
