#include "transport/ucx/descriptor.h"

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/byte_codec.h"

namespace tensorcast::transport {
namespace {

constexpr std::string_view kMagic = "TCUX";
constexpr uint8_t kVersion = 1;
constexpr size_t kSegmentBytes = 1 + 8 + 8;

absl::Status Malformed(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("malformed UCX descriptor: ", what));
}

absl::Status DecodeOneSided(ByteReader& reader, UcxDescriptor& descriptor) {
  const uint8_t rkeys = reader.Get<uint8_t>();
  for (int i = 0; i < rkeys && reader.ok(); ++i) descriptor.rkeys.emplace_back(reader.GetString<uint16_t>());
  const uint64_t segments = reader.Get<uint32_t>();
  if (!reader.ok() || reader.remaining() != segments * kSegmentBytes) {
    return Malformed("its segments do not end where it does");
  }
  uint64_t total = 0;
  for (uint64_t i = 0; i < segments; ++i) {
    UcxDescriptor::Segment segment;
    segment.rkey = reader.Get<uint8_t>();
    segment.address = reader.Get<uint64_t>();
    segment.bytes = reader.Get<uint64_t>();
    const bool wraps = segment.address + segment.bytes < segment.address || total + segment.bytes < total;
    if (wraps || segment.rkey >= descriptor.rkeys.size()) return Malformed("a segment is impossible");
    total += segment.bytes;
    descriptor.segments.push_back(segment);
  }
  return total == descriptor.image_bytes ? absl::OkStatus()
                                         : Malformed("its segments do not make up the image");
}

}  // namespace

absl::StatusOr<std::string> EncodeDescriptor(const UcxDescriptor& descriptor) {
  ByteWriter writer;
  writer.Put(kMagic)
      .Put(kVersion)
      .Put(static_cast<uint8_t>(descriptor.lane))
      .Put(AsBytes(descriptor.pull_id));
  writer.PutString<uint16_t>(descriptor.address).Put(descriptor.image_bytes);
  if (descriptor.lane == UcxLane::kRma) {
    writer.Put(static_cast<uint8_t>(descriptor.rkeys.size()));
    for (const std::string& rkey : descriptor.rkeys) writer.PutString<uint16_t>(rkey);
    writer.Put(static_cast<uint32_t>(descriptor.segments.size()));
    for (const UcxDescriptor::Segment& segment : descriptor.segments) {
      writer.Put(segment.rkey).Put(segment.address).Put(segment.bytes);
    }
  }
  CHECK(writer.ok()) << "UCX made an address or a key of more than 65535 bytes";
  std::string bytes = writer.Take();
  if (bytes.size() > kMaxDescriptorBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("the image lies in ", descriptor.segments.size(),
                     " pieces of memory, too many for the one-sided lane: serve it by the messages lane"));
  }
  return bytes;
}

absl::StatusOr<UcxDescriptor> DecodeDescriptor(std::string_view bytes) {
  ByteReader reader(bytes);
  if (reader.GetBytes(kMagic.size()) != kMagic) return Malformed("it does not start with TCUX");
  const uint8_t version = reader.Get<uint8_t>();
  if (reader.ok() && version != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("UCX descriptor of version ", version,
                                                      "; this receiver reads ", kVersion,
                                                      ": upgrade the older daemon"));
  }
  UcxDescriptor descriptor;
  const uint8_t lane = reader.Get<uint8_t>();
  const std::string_view id = reader.GetBytes(descriptor.pull_id.size());
  descriptor.address = std::string(reader.GetString<uint16_t>());
  descriptor.image_bytes = reader.Get<uint64_t>();
  if (!reader.ok() || lane > static_cast<uint8_t>(UcxLane::kRma)) {
    return Malformed("it is cut short, or of an unknown lane");
  }
  descriptor.lane = static_cast<UcxLane>(lane);
  descriptor.pull_id = PullIdFromBytes(id);
  if (descriptor.lane == UcxLane::kRma) {
    if (absl::Status status = DecodeOneSided(reader, descriptor); !status.ok()) return status;
  }
  if (!reader.AtEnd()) return Malformed("something follows its end");
  return descriptor;
}

}  // namespace tensorcast::transport
