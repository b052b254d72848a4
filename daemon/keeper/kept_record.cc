#include "daemon/keeper/kept_record.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/byte_fields.h"
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

absl::Status Unreadable(std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("read a kept record: ", why, "; get the artifact again"));
}

}  // namespace

std::string EncodeRecord(const KeptRecord& record) {
  FieldWriter<uint16_t> writer;
  ByteWriter& out = writer.bytes();
  out.Put(kMagic);
  writer(kVersion, record.extents);
  out.PutString<uint32_t>(record.manifest);
  // The checksum is over all bytes before it: DecodeRecord refuses a record that was changed.
  out.Put(Checksum(out.bytes()));
  return out.Take();
}

absl::StatusOr<KeptRecord> DecodeRecord(std::string_view bytes) {
  if (bytes.size() < kChecksumBytes) return Unreadable("the record was cut short");
  const std::string_view checksum = bytes.substr(bytes.size() - kChecksumBytes);
  bytes.remove_suffix(kChecksumBytes);
  if (Checksum(bytes) != checksum) return Unreadable("the record was changed");
  FieldReader<uint16_t> reader(bytes);
  ByteReader& in = reader.bytes();
  if (in.GetBytes(kMagic.size()) != kMagic || in.Get<uint16_t>() != kVersion) {
    return Unreadable("the record is of another version");
  }
  KeptRecord record;
  reader(record.extents);
  record.manifest = std::string(in.GetString<uint32_t>());
  if (!in.AtEnd()) return Unreadable("the record has too few bytes or too many");
  return record;
}

absl::StatusOr<UniqueFd> WriteKept(std::string_view bytes) {
  // A memfd has no name on disk: it lives as long as a descriptor, which the keeper holds.
  UniqueFd fd(memfd_create("tensorcast-kept", MFD_CLOEXEC));
  if (!fd) return ErrnoStatus(errno, "create memory for", "a kept record");
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t written = write(fd.get(), bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return ErrnoStatus(errno, "write", "a kept record");
    done += static_cast<size_t>(written);
  }
  return fd;
}

absl::StatusOr<std::string> ReadKept(int fd) {
  const uint64_t size = KeptBytes(fd);
  if (size > kMaxRecordBytes) return Unreadable("the record is too large");
  std::string bytes(size, '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t read = pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) return ErrnoStatus(errno, "read", "a kept record");
    done += static_cast<size_t>(read);
  }
  return bytes;
}

uint64_t KeptBytes(int fd) {
  struct stat file{};
  return fstat(fd, &file) == 0 ? static_cast<uint64_t>(file.st_size) : 0;
}

std::string RecordName(std::string_view artifact_id) { return absl::StrCat(kReplicaPrefix, artifact_id); }

std::string SegmentName(std::string_view name) { return absl::StrCat(kSegmentPrefix, name); }

}  // namespace tensorcast::daemon
