#include "core/artifact/manifest.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/byte_fields.h"
#include "base/status.h"
#include "base/text.h"
#include "core/artifact/artifact_id.h"

namespace tensorcast {

// The fields that the encoder and the decoder share: a manifest without its bytes and what follows from them.
struct ManifestFields {
  ArtifactKind kind = ArtifactKind::kTensors;
  ImageLayout layout;
  std::vector<ChunkDigests> digests;
  std::map<std::string, std::string> metadata;
};

std::string_view ArtifactKindName(ArtifactKind kind) {
  static constexpr std::array<std::string_view, 3> kNames = {"tensors", "files", "difference"};
  const auto number = static_cast<size_t>(kind);
  return number < kNames.size() ? kNames[number] : "";
}

void Fields(auto& io, Tensor& tensor) {
  auto dtype = static_cast<uint8_t>(tensor.dtype);
  io(tensor.name, dtype, tensor.shape, tensor.offset, tensor.nbytes);
  // A number that no DType has is refused when the layout is checked.
  if (io.kReads) tensor.dtype = static_cast<DType>(dtype);
}

// The canonical bytes: encoder and decoder (FORMAT.md).
namespace {

constexpr std::string_view kMagic = "TCMF";
constexpr uint16_t kVersion = 2;
constexpr uint8_t kDigestAlgorithms = 2;  // XXH3-128 and BLAKE3
// Counts and lengths are written as u32.
constexpr uint64_t kMaxLength = std::numeric_limits<uint32_t>::max();

absl::Status Malformed(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("decode manifest: ", what));
}

// Whether all could be read so far.
absl::Status CheckRead(const ByteReader& in) {
  if (in.ok()) return absl::OkStatus();
  return Malformed(absl::StrCat("the bytes are malformed at byte ", in.position(), ": ", in.failure()));
}

template <size_t N>
std::string_view Bytes(const std::array<uint8_t, N>& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

template <size_t N>
void Read(ByteReader& in, std::array<uint8_t, N>& digest) {
  std::ranges::copy(in.GetBytes(N), digest.begin());
}

absl::Status CheckKind(uint8_t kind) {
  if (!ArtifactKindName(static_cast<ArtifactKind>(kind)).empty()) return absl::OkStatus();
  return Malformed(absl::StrCat(
      "the artifact kind is ", kind,
      ", but this build knows only 0 (tensors), 1 (files) and 2 (difference); use a build that knows kind ",
      kind));
}

absl::StatusOr<ArtifactKind> ReadPreamble(FieldReader<uint32_t>& reader) {
  uint16_t version = 0;
  uint8_t digest = 0;
  uint8_t kind = 0;
  reader.Literal(kMagic, "the magic of another format");
  reader(version, digest, kind);
  TC_RETURN_IF_ERROR(CheckRead(reader.bytes()));
  // An older format has other ids for the same tensors, so it is not read as well.
  if (version != kVersion) {
    return Malformed(absl::StrCat("the manifest has format ", version, ", but this build knows only format ",
                                  kVersion, "; use a build that knows format ", version));
  }
  if (digest != kDigestAlgorithms) {
    return Malformed(
        absl::StrCat("this build does not know digest algorithm ", digest, "; use a newer build"));
  }
  TC_RETURN_IF_ERROR(CheckKind(kind));
  return static_cast<ArtifactKind>(kind);
}

// An error about a part of the manifest, both when encoding and when decoding.
template <typename... Why>
absl::Status Invalid(std::string_view part, const Why&... why) {
  return absl::InvalidArgumentError(absl::StrCat("check ", part, " of the manifest: ", why...));
}

absl::Status CheckMetadata(const std::map<std::string, std::string>& metadata) {
  if (metadata.size() > kMaxLength) {
    return Invalid("metadata", "there are ", metadata.size(),
                   " entries, and at most 2^32-1 are allowed; give fewer entries");
  }
  for (const auto& [key, value] : metadata) {
    if (!IsValidUtf8(key) || !IsValidUtf8(value)) {
      return Invalid(absl::StrCat("metadata ", QuoteName(key)),
                     "the key or the value is not valid UTF-8; encode both as UTF-8");
    }
    if (key.size() > kMaxLength || value.size() > kMaxLength) {
      return Invalid(absl::StrCat("metadata ", QuoteName(key)),
                     "the key or the value is longer than 2^32-1 bytes; give a shorter key or value");
    }
  }
  return absl::OkStatus();
}

// A difference is two rows of bytes, and says which two artifacts it lies between and nothing else: the same
// difference is the same artifact.
absl::Status CheckDifference(const ImageLayout& layout, const std::map<std::string, std::string>& metadata) {
  static constexpr std::array<std::string_view, 2> kTensorNames = {"index", "records"};
  const auto is_bytes = [](const Tensor& tensor, std::string_view name) {
    return tensor.name == name && tensor.dtype == DType::kU8 && tensor.shape.size() == 1;
  };
  if (!std::ranges::equal(layout.tensors, kTensorNames, is_bytes)) {
    return Invalid(
        "difference",
        "the tensors must be index and records, both U8 with one dimension; encode the difference again");
  }
  for (const std::string key : {"base", "target"}) {
    const auto id = metadata.find(key);
    if (id == metadata.end() || !IsArtifactId(id->second)) {
      return Invalid("difference", "the metadata entry ", key,
                     " is missing or is not an artifact id; set base and target to artifact ids");
    }
  }
  if (metadata.size() != 2) {
    return Invalid("difference", "the metadata has entries other than base and target; remove these entries");
  }
  if (metadata.at("base") == metadata.at("target")) {
    return Invalid("difference", "base and target are the same artifact; name two artifacts");
  }
  return absl::OkStatus();
}

std::atomic<bool> any_chunk_size = false;  // in tests

// An image is cut in one way, so that its id does not depend on its publisher.
absl::Status CheckChunkRule(const ImageLayout& layout) {
  if (layout.chunk_bytes == ChunkBytesOf(layout.image_bytes) || any_chunk_size) return absl::OkStatus();
  return Invalid("layout", "the chunk size is ", layout.chunk_bytes, " bytes, but an image of ",
                 layout.image_bytes, " bytes is cut into chunks of ", ChunkBytesOf(layout.image_bytes),
                 " bytes; put the artifact with a client of this release");
}

// All rules of FORMAT.md except the order of the bytes. The encoder checks them before it writes, and the
// decoder after it has read, so that both accept the same manifests.
absl::Status CheckFields(const ManifestFields& fields) {
  TC_RETURN_IF_ERROR(ValidateLayout(fields.layout));
  TC_RETURN_IF_ERROR(CheckChunkRule(fields.layout));
  if (fields.layout.tensors.size() > kMaxLength) {
    return Invalid("layout", "there are ", fields.layout.tensors.size(),
                   " tensors, and at most 2^32-1 are allowed; put fewer tensors");
  }
  for (const Tensor& tensor : fields.layout.tensors) {
    if (tensor.name.size() > kMaxLength || tensor.shape.size() > kMaxLength) {
      return Invalid(
          absl::StrCat("tensor ", QuoteName(tensor.name)),
          "the name has more than 2^32-1 bytes, or the shape has more than 2^32-1 dimensions; shorten both");
    }
  }
  if (fields.digests.size() != fields.layout.chunk_count()) {
    return Invalid("digests", "there are ", fields.digests.size(), " digests for ",
                   fields.layout.chunk_count(), " chunks; give one digest for each chunk");
  }
  for (size_t chunk = 0; chunk < fields.digests.size(); ++chunk) {
    if (fields.digests[chunk].blake3.has_value()) continue;
    return Invalid("digests", "chunk ", chunk,
                   " has no BLAKE3 digest; digest every chunk with XXH3 and BLAKE3");
  }
  if (fields.kind == ArtifactKind::kFiles) TC_RETURN_IF_ERROR(CheckFileLayout(fields.layout));
  if (fields.kind == ArtifactKind::kDifference) {
    TC_RETURN_IF_ERROR(CheckDifference(fields.layout, fields.metadata));
  }
  return CheckMetadata(fields.metadata);
}

// INVALID_ARGUMENT for fields that a manifest cannot have; what is encoded decodes to the same fields.
absl::StatusOr<std::string> EncodeManifest(const ManifestFields& fields) {
  TC_RETURN_IF_ERROR(CheckFields(fields));
  const ImageLayout& layout = fields.layout;
  FieldWriter<uint32_t> writer;
  ByteWriter& out = writer.bytes();
  out.Put(kMagic);
  writer(kVersion, kDigestAlgorithms, static_cast<uint8_t>(fields.kind), layout.chunk_bytes,
         layout.image_bytes, static_cast<uint32_t>(layout.tensors.size()),
         static_cast<uint32_t>(fields.metadata.size()));
  for (const Tensor& tensor : layout.tensors) writer(tensor);
  for (const auto& [key, value] : fields.metadata) writer(key, value);
  for (const ChunkDigests& digests : fields.digests) {
    out.Put(Bytes(digests.xxh3.bytes)).Put(Bytes(digests.blake3->bytes));
  }
  return out.Take();
}

// INVALID_ARGUMENT for anything but the encoding of valid fields. A count takes no memory by itself: what it
// announces is read, item by item, as far as there are bytes.
absl::StatusOr<ManifestFields> DecodeManifest(std::string_view bytes) {
  FieldReader<uint32_t> reader(bytes);
  ByteReader& in = reader.bytes();
  ManifestFields fields;
  TC_ASSIGN_OR_RETURN(fields.kind, ReadPreamble(reader));
  ImageLayout& layout = fields.layout;
  uint32_t tensors = 0;
  uint32_t entries = 0;
  reader(layout.chunk_bytes, layout.image_bytes, tensors, entries);
  for (; tensors > 0 && in.ok(); --tensors) reader(layout.tensors.emplace_back());
  for (; entries > 0 && in.ok(); --entries) {
    std::string key;
    std::string value;
    reader(key, value);
    // One set of entries has one encoding, and so one id.
    if (!fields.metadata.empty() && key <= fields.metadata.rbegin()->first) {
      in.Fail("a metadata key that is not in ascending order");
    }
    fields.metadata.emplace_hint(fields.metadata.end(), std::move(key), std::move(value));
  }
  TC_RETURN_IF_ERROR(CheckRead(in));
  // Before chunks are counted by it.
  absl::Status chunk_size = CheckChunkBytes(layout.chunk_bytes, layout.image_bytes);
  chunk_size.Update(CheckChunkRule(layout));
  if (!chunk_size.ok()) return Malformed(chunk_size.message());
  const uint64_t digests = layout.chunk_count();
  // The digests take all that is left: nothing may follow them.
  constexpr uint64_t kDigestsBytes = sizeof(Digest::bytes) + sizeof(Blake3Digest::bytes);  // of a chunk
  if (in.remaining() != digests * kDigestsBytes) {
    return Malformed(absl::StrCat(in.remaining(), " bytes are left for the digests of ", digests,
                                  " chunks, which need ", digests * kDigestsBytes, " bytes"));
  }
  fields.digests.resize(digests);
  for (ChunkDigests& chunk : fields.digests) {
    Read(in, chunk.xxh3.bytes);
    Read(in, chunk.blake3.emplace().bytes);
  }
  // The encoder's own check: what decodes is what Create could have made.
  if (const absl::Status valid = CheckFields(fields); !valid.ok()) return Malformed(valid.message());
  return fields;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Manifest>> Manifest::Create(ImageLayout layout,
                                                                 std::vector<ChunkDigests> digests,
                                                                 std::map<std::string, std::string> metadata,
                                                                 ArtifactKind kind) {
  ManifestFields fields{kind, std::move(layout), std::move(digests), std::move(metadata)};
  TC_ASSIGN_OR_RETURN(std::string bytes, EncodeManifest(fields));
  return Make(std::move(fields), std::move(bytes));
}

absl::StatusOr<std::shared_ptr<const Manifest>> Manifest::Decode(std::string_view bytes) {
  TC_ASSIGN_OR_RETURN(ManifestFields fields, DecodeManifest(bytes));
  return Make(std::move(fields), std::string(bytes));
}

std::shared_ptr<const Manifest> Manifest::Make(ManifestFields fields, std::string bytes) {
  std::shared_ptr<Manifest> manifest(new Manifest());
  manifest->kind_ = fields.kind;
  manifest->layout_ = std::move(fields.layout);
  manifest->digests_ = std::move(fields.digests);
  manifest->metadata_ = std::move(fields.metadata);
  // The id is of the bytes as they came, which are the only encoding of these fields.
  manifest->id_ = ArtifactId(bytes);
  manifest->bytes_ = std::move(bytes);
  // An index beside the layout: the order of the tensors is part of the id, and must stay.
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

std::string Manifest::DigestOfTensors() const {
  FieldWriter<uint32_t> writer;
  for (const uint32_t index : by_name_) {
    const Tensor& tensor = layout_.tensors[index];
    // Neither offsets nor bytes: two versions of a model have the same digest.
    writer(tensor.name, static_cast<uint8_t>(tensor.dtype), tensor.shape);
  }
  const std::array<uint8_t, kSha256Bytes> hash = Sha256Of(writer.bytes().Take());
  return {hash.begin(), hash.end()};
}

bool IsPathBelow(std::string_view path) {
  constexpr size_t kMaxPathBytes = 4095;
  constexpr size_t kMaxPartBytes = 255;
  if (path.size() > kMaxPathBytes || !IsPrintable(path)) return false;
  return std::ranges::none_of(std::vector<std::string_view>(absl::StrSplit(path, '/')), [](auto part) {
    return part.empty() || part.size() > kMaxPartBytes || part == "." || part == "..";
  });
}

absl::Status CheckFileLayout(const ImageLayout& layout) {
  absl::flat_hash_set<std::string_view> folders;
  std::string_view before;
  for (const Tensor& file : layout.tensors) {
    if (!IsPathBelow(file.name)) {
      return Invalid(
          absl::StrCat("file ", QuoteName(file.name)),
          "the name is not a plain relative path of at most 4095 printable bytes, with parts of 1 to 255 "
          "bytes that are not \".\" or \"..\"; rename the file");
    }
    if (file.dtype != DType::kU8 || file.shape.size() != 1) {
      return Invalid(absl::StrCat("file ", QuoteName(file.name)),
                     "a file must be U8 with one dimension; describe the file as bytes");
    }
    if (file.name <= before) {
      return Invalid(absl::StrCat("file ", QuoteName(file.name)),
                     "the name does not come after the name of the previous file; sort the files by name");
    }
    before = file.name;
    for (size_t end = file.name.find('/'); end != std::string::npos; end = file.name.find('/', end + 1)) {
      // `before` is this file's name by now, and its text lives as long as the layout.
      folders.insert(before.substr(0, end));
    }
  }
  // A folder's name begins its files' names, and the name before it may be another ("a", "a-b", "a/c").
  for (const Tensor& file : layout.tensors) {
    if (folders.contains(file.name)) {
      return Invalid(absl::StrCat("file ", QuoteName(file.name)),
                     "another file has this path as a folder; rename one of the two");
    }
  }
  return absl::OkStatus();
}

void AllowAnyChunkSizeForTests() { any_chunk_size = true; }

}  // namespace tensorcast
