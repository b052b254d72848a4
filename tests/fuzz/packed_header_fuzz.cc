// The header of a packed file. 8 bytes say how long the file is; the rest is the header and, since a random
// one never has the right checksum, also the fields of one that has.
#include "absl/log/check.h"
#include "core/disk/packed_format.h"
#include "tests/fuzz/fuzz_target.h"

namespace tensorcast::fuzz {
namespace {

void Decode(std::string_view bytes, uint64_t file_bytes) {
  const absl::StatusOr<PackedHeader> header = DecodePackedHeader(std::as_bytes(std::span(bytes)), file_bytes);
  if (!header.ok()) return;
  CHECK_EQ(header->file_bytes(), file_bytes);
  CHECK_LE(header->manifest_offset + header->manifest_bytes, header->image_offset);
  CHECK_LE(header->image_offset + header->image_bytes, file_bytes);
}

}  // namespace

void TestOneInput(std::string_view input) {
  if (const std::string id = ArtifactIdOfFileName(input); !id.empty()) {
    CHECK_EQ(PackedFileName(id), input) << "two files of one artifact";
  }

  const uint64_t file_bytes = TakeU64(input);
  Decode(input, file_bytes);

  PackedHeader header;
  header.manifest_offset = TakeU64(input);
  header.manifest_bytes = TakeU64(input);
  header.image_offset = TakeU64(input);
  header.image_bytes = TakeU64(input);
  Decode(EncodePackedHeader(header), file_bytes);
}

std::vector<std::string> Seeds() {
  PackedHeader header;
  header.manifest_bytes = 100;
  header.image_offset = 8192;
  header.image_bytes = 5000;
  std::string fields;
  for (uint64_t field :
       {header.manifest_offset, header.manifest_bytes, header.image_offset, header.image_bytes}) {
    fields += U64Bytes(field);
  }
  return {U64Bytes(header.file_bytes()) + EncodePackedHeader(header), U64Bytes(header.file_bytes()) + fields,
          U64Bytes(~uint64_t{0}) + fields, PackedFileName("tc2:" + std::string(52, 'a')),
          "tc2:" + std::string(52, 'a') + ".tcpack"};
}

}  // namespace tensorcast::fuzz
