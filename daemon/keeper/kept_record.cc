#include "daemon/keeper/kept_record.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/byte_codec.h"
#include "base/ids.h"
#include "base/status.h"
#include "core/artifact/digest.h"

namespace tensorcast::daemon {
namespace {

constexpr std::string_view kMagic = "TCKR";
constexpr uint16_t kVersion = 1;
// Far more than the largest manifest needs; only this daemon's user writes there.
constexpr uint64_t kMaxRecordBytes = uint64_t{1} << 30;
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

absl::StatusOr<UniqueFd> WriteKept(std::string_view bytes) {
  UniqueFd fd(memfd_create("tensorcast-kept", MFD_CLOEXEC));
  if (!fd) return ErrnoStatus(errno, "memfd_create for", "what is kept");
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t written = write(fd.get(), bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return ErrnoStatus(errno, "writing", "what is kept");
    done += static_cast<size_t>(written);
  }
  return fd;
}

absl::StatusOr<std::string> ReadKept(int fd) {
  const uint64_t size = KeptBytes(fd);
  if (size > kMaxRecordBytes) return absl::InvalidArgumentError("something kept that is too large");
  std::string bytes(size, '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t read = pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) return ErrnoStatus(errno, "reading", "what is kept");
    done += static_cast<size_t>(read);
  }
  return bytes;
}

uint64_t KeptBytes(int fd) {
  struct stat file{};
  return fstat(fd, &file) == 0 ? static_cast<uint64_t>(file.st_size) : 0;
}

std::string SegmentName(std::string_view name) { return absl::StrCat(kSegmentPrefix, name); }

}  // namespace tensorcast::daemon
