#include "core/artifact/manifest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/byte_codec.h"
#include "base/status.h"
#include "base/text.h"

namespace tensorcast {

struct ManifestFields {
  ImageLayout layout;
  std::vector<ChunkDigests> digests;
  std::map<std::string, std::string> metadata;
};

std::string_view ArtifactKindName(ArtifactKind kind) {
  switch (kind) {
    case ArtifactKind::kTensors:
      return "tensors";
    case ArtifactKind::kFiles:
      return "files";
    case ArtifactKind::kDifference:
      return "difference";
  }
  return "";
}

// The canonical bytes: encoder and decoder (FORMAT.md).
namespace {

constexpr std::string_view kMagic = "TCMF";
constexpr uint16_t kVersion = 2;
constexpr uint8_t kDigestAlgorithms = 2;  // XXH3-128 and BLAKE3
constexpr uint64_t kXxh3Bytes = sizeof(Digest::bytes);
constexpr uint64_t kBlake3Bytes = sizeof(Blake3Digest::bytes);
// The min bytes that one counted thing takes in the input; bounds an allocation by the input's size.
constexpr uint64_t kMinTensorBytes = 4 + 1 + 1 + 4 + 8 + 8;
constexpr uint64_t kMinMetadataBytes = 4 + 4;
constexpr uint64_t kMaxLength = std::numeric_limits<uint32_t>::max();

// Reads fields by name, so that an error says at which byte the input is wrong, and what was expected there.
class ManifestReader {
 public:
  explicit ManifestReader(std::string_view bytes) : bytes_(bytes) {}

  uint64_t position() const { return bytes_.position(); }
  uint64_t left() const { return bytes_.remaining(); }

  absl::Status Error(uint64_t position, std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("not a manifest: at byte ", position, ": ", what));
  }

  absl::StatusOr<std::string_view> Raw(uint64_t bytes, std::string_view what) {
    TC_RETURN_IF_ERROR(CheckLeft(bytes, what));
    return bytes_.GetBytes(bytes);
  }

  template <std::unsigned_integral T>
  absl::Status Integer(T& value, std::string_view what) {
    TC_RETURN_IF_ERROR(CheckLeft(sizeof(T), what));
    value = bytes_.Get<T>();
    return absl::OkStatus();
  }

  // A number of things that take at least `min_bytes` each.
  absl::Status Count(uint32_t& count, uint64_t min_bytes, std::string_view what) {
    const uint64_t at = position();
    TC_RETURN_IF_ERROR(Integer(count, what));
    if (count > left() / min_bytes) {
      return Error(
          at, absl::StrCat(what, " of ", count, " does not fit in the ", left(), " bytes that are left"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string_view> String(std::string_view what) {
    uint32_t bytes = 0;
    TC_RETURN_IF_ERROR(Integer(bytes, what));
    return Raw(bytes, what);
  }

 private:
  absl::Status CheckLeft(uint64_t bytes, std::string_view what) const {
    if (bytes <= left()) return absl::OkStatus();
    return Error(position(), absl::StrCat(what, " needs ", bytes, " bytes, but ", left(), " are left"));
  }

  ByteReader bytes_;
};

template <size_t N>
std::string_view Bytes(const std::array<uint8_t, N>& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

void WriteTensor(const Tensor& tensor, ByteWriter& writer) {
  writer.PutString<uint32_t>(tensor.name);
  writer.Put(static_cast<uint8_t>(tensor.dtype));
  writer.Put(static_cast<uint32_t>(tensor.shape.size()));
  for (const uint64_t dimension : tensor.shape) writer.Put(dimension);
  writer.Put(tensor.offset);
  writer.Put(tensor.nbytes);
}

absl::StatusOr<Tensor> ReadTensor(ManifestReader& reader) {
  Tensor tensor;
  TC_ASSIGN_OR_RETURN(tensor.name, reader.String("a tensor name"));
  uint8_t dtype = 0;
  TC_RETURN_IF_ERROR(reader.Integer(dtype, "a dtype"));
  tensor.dtype = static_cast<DType>(dtype);
  uint32_t rank = 0;
  TC_RETURN_IF_ERROR(reader.Count(rank, sizeof(uint64_t), "a rank"));
  tensor.shape.resize(rank);
  for (uint64_t& dimension : tensor.shape) TC_RETURN_IF_ERROR(reader.Integer(dimension, "a dimension"));
  TC_RETURN_IF_ERROR(reader.Integer(tensor.offset, "an offset"));
  TC_RETURN_IF_ERROR(reader.Integer(tensor.nbytes, "a size"));
  return tensor;
}

absl::Status ReadTensors(ManifestReader& reader, uint32_t count, ImageLayout& layout) {
  LayoutChecker checker(count);
  layout.tensors.reserve(count);  // the checker needs them to stay where they are
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t at = reader.position();
    TC_ASSIGN_OR_RETURN(Tensor read, ReadTensor(reader));
    const Tensor& tensor = layout.tensors.emplace_back(std::move(read));
    const absl::StatusOr<uint64_t> offset = checker.Next(tensor);
    if (!offset.ok()) return reader.Error(at, offset.status().message());
    if (tensor.offset != *offset) {
      return reader.Error(at, absl::StrCat("tensor ", QuoteName(tensor.name), " is at offset ", tensor.offset,
                                           " of the image instead of ", *offset));
    }
  }
  if (layout.image_bytes != checker.image_bytes()) {
    return reader.Error(reader.position(),
                        absl::StrCat("the image has ", layout.image_bytes, " bytes, but its tensors end at ",
                                     checker.image_bytes()));
  }
  return absl::OkStatus();
}

absl::Status ReadMetadata(ManifestReader& reader, uint32_t count,
                          std::map<std::string, std::string>& metadata) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t at = reader.position();
    TC_ASSIGN_OR_RETURN(const std::string_view key, reader.String("a metadata key"));
    TC_ASSIGN_OR_RETURN(const std::string_view value, reader.String("a metadata value"));
    if (!IsValidUtf8(key) || !IsValidUtf8(value)) {
      return reader.Error(at, absl::StrCat("metadata ", QuoteName(key), " is not valid UTF-8"));
    }
    if (!metadata.empty() && key <= metadata.rbegin()->first) {
      return reader.Error(at, absl::StrCat("metadata key ", QuoteName(key), " is not in ascending order"));
    }
    metadata.emplace_hint(metadata.end(), key, value);
  }
  return absl::OkStatus();
}

absl::Status ReadDigests(ManifestReader& reader, ManifestFields& fields) {
  const uint32_t count = fields.layout.chunk_count();
  if (reader.left() != count * (kXxh3Bytes + kBlake3Bytes)) {
    return reader.Error(reader.position(), absl::StrCat(reader.left(), " bytes are left instead of those of ",
                                                        count, " digests"));
  }
  fields.digests.resize(count);
  for (ChunkDigests& digests : fields.digests) {
    TC_ASSIGN_OR_RETURN(const std::string_view xxh3, reader.Raw(kXxh3Bytes, "a digest"));
    std::memcpy(digests.xxh3.bytes.data(), xxh3.data(), kXxh3Bytes);
    TC_ASSIGN_OR_RETURN(const std::string_view blake3, reader.Raw(kBlake3Bytes, "a digest"));
    std::memcpy(digests.blake3.emplace().bytes.data(), blake3.data(), kBlake3Bytes);
  }
  return absl::OkStatus();
}

absl::Status CheckKind(const ManifestReader& reader, ArtifactKind kind) {
  if (kind == ArtifactKind::kTensors) return absl::OkStatus();
  const std::string_view name = ArtifactKindName(kind);
  return reader.Error(7, absl::StrCat("artifact kind ", static_cast<int>(kind),
                                      name.empty() ? "" : absl::StrCat(" (", name, ")"),
                                      ", but this build knows only 0 (tensors): use a build that knows it"));
}

absl::Status ReadPreamble(ManifestReader& reader) {
  TC_ASSIGN_OR_RETURN(const std::string_view magic, reader.Raw(kMagic.size(), "the magic"));
  if (magic != kMagic) {
    return reader.Error(0, absl::StrCat("it begins with ", QuoteName(magic), " instead of \"", kMagic, "\""));
  }
  uint16_t version = 0;
  TC_RETURN_IF_ERROR(reader.Integer(version, "the version"));
  if (version != kVersion) {
    return reader.Error(4, absl::StrCat("format version ", version, ", but this build knows only ", kVersion,
                                        ": use a build that knows it"));
  }
  uint8_t digest = 0;
  TC_RETURN_IF_ERROR(reader.Integer(digest, "the digest algorithm"));
  if (digest != kDigestAlgorithms) return reader.Error(6, absl::StrCat("digest algorithm ", digest));
  uint8_t kind = 0;
  TC_RETURN_IF_ERROR(reader.Integer(kind, "the kind"));
  return CheckKind(reader, static_cast<ArtifactKind>(kind));
}

absl::Status CheckMetadata(const std::map<std::string, std::string>& metadata) {
  if (metadata.size() > kMaxLength) return absl::InvalidArgumentError("more than 2^32-1 metadata entries");
  for (const auto& [key, value] : metadata) {
    if (!IsValidUtf8(key) || !IsValidUtf8(value)) {
      return absl::InvalidArgumentError(absl::StrCat("metadata ", QuoteName(key), " is not valid UTF-8"));
    }
    if (key.size() > kMaxLength || value.size() > kMaxLength) {
      return absl::InvalidArgumentError(
          absl::StrCat("metadata ", QuoteName(key), " is longer than 2^32-1 bytes"));
    }
  }
  return absl::OkStatus();
}

std::atomic<bool> any_chunk_size = false;  // in tests

// An image is cut in one way, so that its id does not depend on its publisher.
absl::Status CheckChunkRule(const ImageLayout& layout) {
  if (layout.chunk_bytes == ChunkBytesOf(layout.image_bytes) || any_chunk_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the chunk size is ", layout.chunk_bytes, " bytes, but an image of ", layout.image_bytes,
                   " bytes is cut into chunks of ", ChunkBytesOf(layout.image_bytes)));
}

absl::Status CheckFields(const ManifestFields& fields) {
  TC_RETURN_IF_ERROR(ValidateLayout(fields.layout));
  TC_RETURN_IF_ERROR(CheckChunkRule(fields.layout));
  if (fields.layout.tensors.size() > kMaxLength) {
    return absl::InvalidArgumentError("more than 2^32-1 tensors");
  }
  for (const Tensor& tensor : fields.layout.tensors) {
    if (tensor.name.size() > kMaxLength || tensor.shape.size() > kMaxLength) {
      return absl::InvalidArgumentError(
          absl::StrCat("the name or shape of tensor ", QuoteName(tensor.name), " is longer than 2^32-1"));
    }
  }
  if (fields.digests.size() != fields.layout.chunk_count()) {
    return absl::InvalidArgumentError(absl::StrCat("digests of ", fields.digests.size(), " chunks for ",
                                                   fields.layout.chunk_count(),
                                                   " chunks: each chunk needs its own"));
  }
  for (size_t chunk = 0; chunk < fields.digests.size(); ++chunk) {
    if (fields.digests[chunk].blake3.has_value()) continue;
    return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk, " has no BLAKE3"));
  }
  return CheckMetadata(fields.metadata);
}

// INVALID_ARGUMENT for fields that a manifest cannot have; what is encoded decodes to
// the same fields.
absl::StatusOr<std::string> EncodeManifest(const ManifestFields& fields) {
  TC_RETURN_IF_ERROR(CheckFields(fields));
  const ImageLayout& layout = fields.layout;
  ByteWriter writer;
  writer.Put(kMagic);
  writer.Put(kVersion);
  writer.Put(kDigestAlgorithms);
  writer.Put(static_cast<uint8_t>(ArtifactKind::kTensors));
  writer.Put(layout.chunk_bytes);
  writer.Put(layout.image_bytes);
  writer.Put(static_cast<uint32_t>(layout.tensors.size()));
  writer.Put(static_cast<uint32_t>(fields.metadata.size()));
  for (const Tensor& tensor : layout.tensors) WriteTensor(tensor, writer);
  for (const auto& [key, value] : fields.metadata) {
    writer.PutString<uint32_t>(key);
    writer.PutString<uint32_t>(value);
  }
  for (const ChunkDigests& digests : fields.digests) {
    writer.Put(Bytes(digests.xxh3.bytes));
    writer.Put(Bytes(digests.blake3->bytes));
  }
  return writer.Take();
}

// INVALID_ARGUMENT, with the offset of the offending field, for anything but the encoding of valid fields.
absl::StatusOr<ManifestFields> DecodeManifest(std::string_view bytes) {
  ManifestReader reader(bytes);
  ManifestFields fields;
  TC_RETURN_IF_ERROR(ReadPreamble(reader));
  const uint64_t sizes_at = reader.position();
  TC_RETURN_IF_ERROR(reader.Integer(fields.layout.chunk_bytes, "the chunk size"));
  TC_RETURN_IF_ERROR(reader.Integer(fields.layout.image_bytes, "the image size"));
  absl::Status chunks = CheckChunkBytes(fields.layout.chunk_bytes, fields.layout.image_bytes);
  chunks.Update(CheckChunkRule(fields.layout));
  if (!chunks.ok()) return reader.Error(sizes_at, chunks.message());
  uint32_t tensors = 0;
  uint32_t metadata = 0;
  TC_RETURN_IF_ERROR(reader.Count(tensors, kMinTensorBytes, "a tensor count"));
  TC_RETURN_IF_ERROR(reader.Count(metadata, kMinMetadataBytes, "a metadata count"));
  TC_RETURN_IF_ERROR(ReadTensors(reader, tensors, fields.layout));
  TC_RETURN_IF_ERROR(ReadMetadata(reader, metadata, fields.metadata));
  TC_RETURN_IF_ERROR(ReadDigests(reader, fields));
  return fields;
}

}  // namespace

// The artifact id.
namespace {

constexpr std::string_view kPrefix = "tc2:";
constexpr std::string_view kBase32Alphabet = "abcdefghijklmnopqrstuvwxyz234567";  // RFC 4648, lower case
constexpr size_t kSha256Bytes = 32;
constexpr size_t kBase32Characters = (kSha256Bytes * 8 + 4) / 5;

std::array<uint8_t, kSha256Bytes> Sha256(std::string_view bytes) {
  std::array<uint8_t, kSha256Bytes> hash;
  unsigned int hash_bytes = 0;
  CHECK_EQ(EVP_Digest(bytes.data(), bytes.size(), hash.data(), &hash_bytes, EVP_sha256(), nullptr), 1)
      << "OpenSSL offers no SHA-256";
  CHECK_EQ(hash_bytes, kSha256Bytes);
  return hash;
}

void AppendBase32(std::span<const uint8_t> bytes, std::string& out) {
  uint32_t pending = 0;
  int pending_bits = 0;
  for (const uint8_t byte : bytes) {
    pending = pending << 8 | byte;
    for (pending_bits += 8; pending_bits >= 5;) {
      pending_bits -= 5;
      out += kBase32Alphabet[pending >> pending_bits & 31];
    }
  }
  if (pending_bits > 0) out += kBase32Alphabet[pending << (5 - pending_bits) & 31];
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Manifest>> Manifest::Create(
    ImageLayout layout, std::vector<ChunkDigests> digests, std::map<std::string, std::string> metadata) {
  ManifestFields fields{std::move(layout), std::move(digests), std::move(metadata)};
  TC_ASSIGN_OR_RETURN(std::string bytes, EncodeManifest(fields));
  return Make(std::move(fields), std::move(bytes));
}

absl::StatusOr<std::shared_ptr<const Manifest>> Manifest::Decode(std::string_view bytes) {
  TC_ASSIGN_OR_RETURN(ManifestFields fields, DecodeManifest(bytes));
  return Make(std::move(fields), std::string(bytes));
}

std::shared_ptr<const Manifest> Manifest::Make(ManifestFields fields, std::string bytes) {
  std::shared_ptr<Manifest> manifest(new Manifest());
  manifest->layout_ = std::move(fields.layout);
  manifest->digests_ = std::move(fields.digests);
  manifest->metadata_ = std::move(fields.metadata);
  manifest->id_ = ArtifactId(bytes);
  manifest->bytes_ = std::move(bytes);
  manifest->by_name_.resize(manifest->layout_.tensors.size());
  std::iota(manifest->by_name_.begin(), manifest->by_name_.end(), 0u);
  std::sort(manifest->by_name_.begin(), manifest->by_name_.end(),
            [&tensors = manifest->layout_.tensors](uint32_t a, uint32_t b) {
              return tensors[a].name < tensors[b].name;
            });
  return manifest;
}

const Tensor* Manifest::Find(std::string_view name) const {
  const auto found = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [this](uint32_t index, std::string_view wanted) { return layout_.tensors[index].name < wanted; });
  if (found == by_name_.end() || layout_.tensors[*found].name != name) return nullptr;
  return &layout_.tensors[*found];
}

std::string ArtifactId(std::string_view canonical_manifest) {
  std::string id(kPrefix);
  id.reserve(kPrefix.size() + kBase32Characters);
  AppendBase32(Sha256(canonical_manifest), id);
  return id;
}

bool IsArtifactId(std::string_view text) {
  if (!BeginsAsArtifactId(text)) return false;
  text.remove_prefix(kPrefix.size());
  if (text.size() != kBase32Characters || text.find_first_not_of(kBase32Alphabet) != std::string_view::npos) {
    return false;
  }
  // The last character holds one bit of the hash; the other four are zero.
  return text.back() == 'a' || text.back() == 'q';
}

bool BeginsAsArtifactId(std::string_view text) { return text.starts_with(kPrefix); }

void AllowAnyChunkSizeForTests() { any_chunk_size = true; }

}  // namespace tensorcast
