#include "daemon/keeper/kept_record.h"

#include <span>

#include "absl/strings/str_cat.h"
#include "base/byte_codec.h"
#include "base/ids.h"
#include "core/artifact/digest.h"

namespace tensorcast::daemon {
namespace {

constexpr std::string_view kMagic = "TCKR";
constexpr uint16_t kVersion = 1;
constexpr size_t kChecksumBytes = sizeof(Digest::bytes);

std::string Checksum(std::string_view bytes) {
  const Digest digest = ComputeDigest(std::as_bytes(std::span(bytes)));
  return std::string(digest.bytes.begin(), digest.bytes.end());
}

}  // namespace

std::string EncodeRecord(const KeptRecord& record) {
  ByteWriter out;
  out.Put(kMagic).Put(kVersion).Put(static_cast<uint32_t>(record.extents.size()));
  for (const NamedExtent& extent : record.extents) {
    out.Put(extent.image_offset).PutString<uint16_t>(extent.segment).Put(extent.offset).Put(extent.bytes);
  }
  out.PutString<uint32_t>(record.manifest);
  out.Put(Checksum(out.bytes()));
  return out.Take();
}

absl::StatusOr<KeptRecord> DecodeRecord(std::string_view bytes) {
  if (bytes.size() < kChecksumBytes) return absl::InvalidArgumentError("a kept record that was cut short");
  const std::string_view checksum = bytes.substr(bytes.size() - kChecksumBytes);
  bytes.remove_suffix(kChecksumBytes);
  if (Checksum(bytes) != checksum) return absl::InvalidArgumentError("a kept record that was changed");
  ByteReader in(bytes);
  if (in.GetBytes(kMagic.size()) != kMagic || in.Get<uint16_t>() != kVersion) {
    return absl::InvalidArgumentError("a kept record of another version");
  }
  KeptRecord record;
  for (uint32_t left = in.Get<uint32_t>(); left > 0 && in.ok(); --left) {
    NamedExtent& extent = record.extents.emplace_back();
    extent.image_offset = in.Get<uint64_t>();
    extent.segment = std::string(in.GetString<uint16_t>());
    extent.offset = in.Get<uint64_t>();
    extent.bytes = in.Get<uint64_t>();
  }
  record.manifest = std::string(in.GetString<uint32_t>());
  if (!in.AtEnd()) return absl::InvalidArgumentError("a kept record with too little or too much in it");
  return record;
}

}  // namespace tensorcast::daemon
