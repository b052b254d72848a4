#include "core/disk/packed_format.h"

#include <algorithm>

#include "absl/log/check.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/byte_codec.h"
#include "core/artifact/digest.h"
#include "core/artifact/manifest.h"

namespace tensorcast {
namespace {

constexpr std::string_view kMagic("TCPACKED", 8);

constexpr size_t kDigestAt = 48;  // covers what stands before it
constexpr size_t kUsedBytes = 64;

absl::Status Malformed(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(what, "; put the artifact again"));
}

// The digest has been compared by then, so a header that fails here is of another writer, or the file was
// cut.
absl::Status CheckParts(const PackedHeader& header, uint64_t file_bytes) {
  if (header.manifest_offset != kPackedHeaderBytes) {
    return Malformed("the manifest does not follow the header");
  }
  if (header.image_offset % kPackedAlignment != 0) {
    return Malformed(absl::StrCat("the image begins at byte ", header.image_offset,
                                  ", which is not a multiple of ", kPackedAlignment));
  }
  // Each sum has only terms that were found to be inside the file.
  if (header.image_offset > file_bytes) {
    return Malformed(absl::StrCat("the file has ", file_bytes,
                                  " bytes, but its header names an image at offset ", header.image_offset));
  }
  if (header.image_offset < header.manifest_offset ||
      header.manifest_bytes > header.image_offset - header.manifest_offset) {
    return Malformed(absl::StrCat("the manifest of ", header.manifest_bytes, " bytes at offset ",
                                  header.manifest_offset, " reaches into the image at offset ",
                                  header.image_offset));
  }
  if (header.image_bytes > file_bytes - header.image_offset || header.file_bytes() != file_bytes) {
    return Malformed(absl::StrCat("the file has ", file_bytes, " bytes, but its header names an image of ",
                                  header.image_bytes, " bytes at offset ", header.image_offset));
  }
  return absl::OkStatus();
}

}  // namespace

std::string EncodePackedHeader(const PackedHeader& header) {
  ByteWriter writer;
  writer.Put(kMagic).Put(kPackedVersion).Put(static_cast<uint32_t>(kPackedHeaderBytes));
  writer.Put(header.manifest_offset).Put(header.manifest_bytes);
  writer.Put(header.image_offset).Put(header.image_bytes);
  std::string bytes = writer.Take();
  // The rest is zero, the digest's place among it, until the digest is put there.
  bytes.resize(kPackedHeaderBytes);
  const Digest digest = ComputeDigest(std::as_bytes(std::span(bytes)).first(kDigestAt));
  std::copy(digest.bytes.begin(), digest.bytes.end(), bytes.begin() + kDigestAt);
  return bytes;
}

absl::StatusOr<PackedHeader> DecodePackedHeader(std::span<const std::byte> bytes, uint64_t file_bytes) {
  if (bytes.size() < kPackedHeaderBytes) {
    return Malformed(
        absl::StrCat("the file has ", bytes.size(), " bytes, but the header alone has ", kPackedHeaderBytes));
  }
  ByteReader reader({reinterpret_cast<const char*>(bytes.data()), kDigestAt});
  if (reader.GetBytes(kMagic.size()) != kMagic) {
    return Malformed("the file does not begin with the bytes of a packed file");
  }
  const uint32_t version = reader.Get<uint32_t>();
  // Before the digest, which may lie elsewhere in a later version.
  if (version > kPackedVersion) {
    return absl::UnimplementedError(absl::StrCat("the packed file has format ", version,
                                                 ", and this build reads format ", kPackedVersion,
                                                 "; use a build that reads format ", version));
  }
  const Digest digest = ComputeDigest(bytes.first(kDigestAt));
  const auto stored = bytes.subspan(kDigestAt, digest.bytes.size());
  if (!std::ranges::equal(std::as_bytes(std::span(digest.bytes)), stored)) {
    return Malformed("the header is damaged");
  }
  if (version != kPackedVersion) {
    return Malformed(absl::StrCat("the packed file has format ", version, ", and this build reads format ",
                                  kPackedVersion));
  }
  if (const auto header_bytes = reader.Get<uint32_t>(); header_bytes != kPackedHeaderBytes) {
    return Malformed(absl::StrCat("the header names ", header_bytes, " bytes as its own size instead of ",
                                  kPackedHeaderBytes));
  }
  // What this version does not use is zero, so that a later version can give it a meaning.
  const auto reserved = bytes.subspan(kUsedBytes, kPackedHeaderBytes - kUsedBytes);
  if (std::ranges::any_of(reserved, [](std::byte b) { return b != std::byte{0}; })) {
    return Malformed("the unused bytes of the header are not zero");
  }
  PackedHeader header;
  header.manifest_offset = reader.Get<uint64_t>();
  header.manifest_bytes = reader.Get<uint64_t>();
  header.image_offset = reader.Get<uint64_t>();
  header.image_bytes = reader.Get<uint64_t>();
  if (absl::Status status = CheckParts(header, file_bytes); !status.ok()) return status;
  return header;
}

std::string PackedFileName(std::string_view artifact_id) {
  return absl::StrCat(absl::StrReplaceAll(artifact_id, {{":", "-"}}), kPackedExtension);
}

std::string ArtifactIdOfFileName(std::string_view file_name) {
  if (!absl::ConsumeSuffix(&file_name, kPackedExtension)) return "";
  // A colon would give one artifact two names, of which only one is ever looked for.
  if (absl::StrContains(file_name, ':')) return "";
  std::string id = absl::StrReplaceAll(file_name, {{"-", ":"}});
  return IsArtifactId(id) ? id : "";
}

}  // namespace tensorcast
