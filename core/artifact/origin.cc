#include "core/artifact/origin.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/byte_codec.h"

namespace tensorcast {
namespace {

constexpr uint8_t kFormat = 1;
constexpr uint8_t kUntraceable = 1;
constexpr uint8_t kCompared = 2;

}  // namespace

std::string FileVersion::Text() const {
  return absl::StrCat(device, ":", inode, ":", mtime_ns, ":", ctime_ns);
}

std::optional<FileVersion> FileVersion::Parse(std::string_view text) {
  const std::vector<std::string_view> numbers = absl::StrSplit(text, ':');
  FileVersion version;
  if (numbers.size() != 4 || !absl::SimpleAtoi(numbers[0], &version.device) ||
      !absl::SimpleAtoi(numbers[1], &version.inode) || !absl::SimpleAtoi(numbers[2], &version.mtime_ns) ||
      !absl::SimpleAtoi(numbers[3], &version.ctime_ns)) {
    return std::nullopt;
  }
  return version;
}

std::string DescribeChange(const ObjectIdentity& was, const ObjectIdentity& is) {
  std::vector<std::string> changes;
  const auto compare = [&](std::string_view what, const auto& before, const auto& now) {
    if (before != now) changes.push_back(absl::StrCat(what, " was ", before, ", is ", now));
  };
  compare("its size", was.bytes, is.bytes);
  const std::optional<FileVersion> before = FileVersion::Parse(was.version);
  const std::optional<FileVersion> now = FileVersion::Parse(is.version);
  if (before.has_value() && now.has_value()) {
    compare("its mtime in ns", before->mtime_ns, now->mtime_ns);
    compare("its ctime in ns", before->ctime_ns, now->ctime_ns);
    compare("its inode", before->inode, now->inode);
    compare("its device", before->device, now->device);
  } else {
    compare("its version", was.version, is.version);
  }
  return absl::StrJoin(changes, ", ");
}

std::string EncodeOrigin(const Origin& origin) {
  ByteWriter writer;
  writer.Put(kFormat);
  writer.Put(
      static_cast<uint8_t>((origin.untraceable ? kUntraceable : 0) | (origin.compared ? kCompared : 0)));
  writer.PutString<uint32_t>(origin.node_id);
  writer.Put(static_cast<uint32_t>(origin.objects.size()));
  for (const ObjectIdentity& object : origin.objects) {
    writer.PutString<uint32_t>(object.uri).Put(object.bytes).PutString<uint32_t>(object.version);
  }
  return writer.Take();
}

absl::StatusOr<Origin> DecodeOrigin(std::string_view bytes) {
  ByteReader reader(bytes);
  if (const uint8_t format = reader.Get<uint8_t>(); format != kFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat("decode origin: it has format ", format, "; this build reads only ", kFormat));
  }
  Origin origin;
  const uint8_t flags = reader.Get<uint8_t>();
  if (flags > (kUntraceable | kCompared)) reader.Fail("unknown flags");
  origin.untraceable = (flags & kUntraceable) != 0;
  origin.compared = (flags & kCompared) != 0;
  origin.node_id = reader.GetString<uint32_t>();
  for (uint32_t left = reader.Get<uint32_t>(); left > 0 && reader.ok(); --left) {
    ObjectIdentity& object = origin.objects.emplace_back();
    object.uri = reader.GetString<uint32_t>();
    object.bytes = reader.Get<uint64_t>();
    object.version = reader.GetString<uint32_t>();
  }
  if (reader.AtEnd()) return origin;
  return absl::InvalidArgumentError(
      absl::StrCat("decode origin: at byte ", reader.position(), ": ",
                   reader.ok() ? "more bytes than an origin has" : reader.failure()));
}

}  // namespace tensorcast
