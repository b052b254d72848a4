#include "core/artifact/origin.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/byte_fields.h"
#include "core/artifact/object_uri.h"

namespace tensorcast {
namespace {

constexpr uint8_t kFormat = 1;
// Bits of the flags; the others are zero.
constexpr uint8_t kUntraceable = 1;
constexpr uint8_t kCompared = 2;

}  // namespace

void Fields(auto& io, ObjectIdentity& object) { io(object.uri, object.bytes, object.version); }
void Fields(auto& io, Origin& origin) {
  auto flags =
      static_cast<uint8_t>((origin.untraceable ? kUntraceable : 0) | (origin.compared ? kCompared : 0));
  io(flags);
  io.Check(flags <= (kUntraceable | kCompared), "flags that this build does not know");
  if (io.kReads) {
    origin.untraceable = (flags & kUntraceable) != 0;
    origin.compared = (flags & kCompared) != 0;
  }
  io(origin.node_id, origin.objects);
}

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
    if (before != now) changes.push_back(absl::StrCat("the ", what, " was ", before, " and is now ", now));
  };
  compare("size", was.bytes, is.bytes);
  // The parts of a file's version are named one by one: a new mtime and a new inode have different causes.
  const std::optional<FileVersion> before = FileVersion::Parse(was.version);
  const std::optional<FileVersion> now = FileVersion::Parse(is.version);
  if (before.has_value() && now.has_value()) {
    compare("mtime in ns", before->mtime_ns, now->mtime_ns);
    compare("ctime in ns", before->ctime_ns, now->ctime_ns);
    compare("inode", before->inode, now->inode);
    compare("device", before->device, now->device);
  } else {
    compare("version", was.version, is.version);
  }
  return absl::StrJoin(changes, ", ");
}

// An origin without objects names nothing that another node could read.
bool IsShared(const Origin& origin) {
  return !origin.objects.empty() && std::ranges::all_of(origin.objects, IsObjectUri, &ObjectIdentity::uri);
}

std::string EncodeOrigin(const Origin& origin) {
  FieldWriter<uint32_t> writer;
  writer(kFormat, origin);
  return writer.bytes().Take();
}

absl::StatusOr<Origin> DecodeOrigin(std::string_view bytes) {
  FieldReader<uint32_t> reader(bytes);
  const ByteReader& in = reader.bytes();
  uint8_t format = 0;
  reader(format);
  if (format != kFormat) {
    return absl::InvalidArgumentError(absl::StrCat("decode origin: the origin has format ", format,
                                                   ", but this build knows only format ", kFormat,
                                                   "; use a build that knows format ", format));
  }
  Origin origin;
  reader(origin);
  if (in.AtEnd()) return origin;
  return absl::InvalidArgumentError(absl::StrCat("decode origin: the bytes are malformed at byte ",
                                                 in.position(), ": ",
                                                 in.ok() ? "bytes follow the last field" : in.failure()));
}

}  // namespace tensorcast
