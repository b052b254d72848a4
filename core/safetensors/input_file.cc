#include "core/safetensors/input_file.h"

#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/byte_codec.h"
#include "base/status.h"

namespace tensorcast {
namespace {

constexpr uint64_t kLengthBytes = sizeof(uint64_t);

}  // namespace

absl::StatusOr<std::string> ReadBytes(const OpenedFile& file, uint64_t offset, uint64_t bytes) {
  std::string data(bytes, '\0');
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t count =
        pread(file.fd.get(), data.data() + done, bytes - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, "read", file.identity.path);
    if (count == 0) {
      return absl::DataLossError(absl::StrCat("the file ended at byte ", offset + done,
                                              ", while it was being read: does something still write it?"));
    }
    done += static_cast<uint64_t>(count);
  }
  return data;
}

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const OpenedFile& file) {
  const uint64_t file_bytes = file.identity.bytes;
  if (file_bytes < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the file has only ", file_bytes, " bytes: not a safetensors file"));
  }
  TC_ASSIGN_OR_RETURN(const std::string length, ReadBytes(file, 0, kLengthBytes));
  const uint64_t header_bytes = ByteReader(length).Get<uint64_t>();
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the header's length of ", header_bytes,
                                                   " bytes is beyond the format's limit of ",
                                                   kMaxSafetensorsHeaderBytes, ": not a safetensors file"));
  }
  if (header_bytes > file_bytes - kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the header of ", header_bytes,
                                                   " bytes does not fit in the file of ", file_bytes,
                                                   " bytes: the file is truncated"));
  }
  TC_ASSIGN_OR_RETURN(const std::string header, ReadBytes(file, kLengthBytes, header_bytes));
  return ParseSafetensorsHeader(header, file_bytes - kLengthBytes - header_bytes);
}

}  // namespace tensorcast
