#include "daemon/node/node_state.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "base/ids.h"
#include "base/posix/state_files.h"
#include "base/status.h"

namespace tensorcast::daemon {
namespace {

// What a start writes is a few blocks: the incarnation, sockets, entries of the directory.
constexpr uint64_t kReserveBytes = 256 << 10;

// The global store takes none from here on; this leaves room for as many starts as there will be.
constexpr uint64_t kIncarnationsEnd = uint64_t{1} << 63;

// The whole of a small file, without white space at its ends. NOT_FOUND when there is none.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return ErrnoStatus(errno, "open", path);
  char buffer[256];
  const ssize_t got = read(file.get(), buffer, sizeof(buffer));
  if (got < 0) return ErrnoStatus(errno, "read", path);
  return std::string(absl::StripAsciiWhitespace(std::string_view(buffer, got)));
}

absl::Status WriteAndSync(int file, const std::string& path, std::string_view content) {
  const ssize_t written = pwrite(file, content.data(), content.size(), 0);
  if (written == static_cast<ssize_t>(content.size()) && fsync(file) == 0) return absl::OkStatus();
  return ErrnoStatus(written >= 0 && written < static_cast<ssize_t>(content.size()) ? ENOSPC : errno, "write",
                     path);
}

// Over what is there, which takes no room. It is a line in one sector, so a reader still sees the old or the
// new.
absl::Status OverwriteSmallFile(const std::string& path, std::string line) {
  UniqueFd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  struct stat info{};
  if (!file || fstat(file.get(), &info) != 0) return ErrnoStatus(errno, "open", path);
  line.resize(std::max<size_t>(line.size(), info.st_size), '\n');
  return WriteAndSync(file.get(), path, line);
}

absl::Status ReplaceSmallFile(const std::string& path, std::string_view content) {
  const std::string line = absl::StrCat(content, "\n");
  // A full disk has no room for a second file: then the line is written over the old one.
  absl::Status replaced = ReplaceFile(path, line);
  const bool full = absl::IsResourceExhausted(replaced);
  return full && OverwriteSmallFile(path, line).ok() ? absl::OkStatus() : replaced;
}

std::string NodeIdPath(const std::string& directory) { return absl::StrCat(directory, "/node_id"); }

// The file with the node id, made if need be, and locked. Of those that start at once on an empty directory
// one locks the file that the first of them made, and only it writes the id.
absl::StatusOr<UniqueFd> LockNodeId(const std::string& directory) {
  const std::string path = NodeIdPath(directory);
  UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file) return ErrnoStatus(errno, "open", path);
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    return errno != EWOULDBLOCK ? ErrnoStatus(errno, "lock", path)
                                : absl::FailedPreconditionError(
                                      absl::StrCat("lock the state directory ", directory,
                                                   ": another daemon uses the directory; stop that daemon, "
                                                   "or give this one a daemon.state_dir of its own"));
  }
  struct stat info{};
  if (fstat(file.get(), &info) != 0) return ErrnoStatus(errno, "stat", path);
  if (info.st_size == 0) {  // new, or of a start that was cut short here
    const absl::Status written = WriteAndSync(file.get(), path, absl::StrCat(NewUuid(), "\n"));
    if (!written.ok()) {
      (void)ftruncate(file.get(), 0);  // the next start writes the whole of it
      return written;
    }
    TC_RETURN_IF_ERROR(SyncFolder(directory));
  }
  return file;
}

std::string ReservePath(const std::string& directory) { return absl::StrCat(directory, "/reserve"); }

}  // namespace

absl::StatusOr<std::unique_ptr<NodeState>> NodeState::Open(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return ErrnoStatus(error.value(), "create state directory", directory);
  // The lock is held for as long as the daemon runs. So a second daemon cannot use the folder, nor the keeper
  // that belongs to it.
  TC_ASSIGN_OR_RETURN(UniqueFd lock, LockNodeId(directory));
  ReleaseSpace(ReservePath(directory));
  std::unique_ptr<NodeState> state(new NodeState(directory, std::move(lock)));
  TC_RETURN_IF_ERROR(state->Load());
  return state;
}

absl::StatusOr<std::string> NodeState::NodeId(const std::string& directory) {
  TC_RETURN_IF_ERROR(LockNodeId(directory).status());  // written, and free again
  return ReadSmallFile(NodeIdPath(directory));
}

void NodeState::KeepRoom() const { ReserveSpace(ReservePath(directory_), kReserveBytes); }

absl::Status NodeState::Load() {
  TC_ASSIGN_OR_RETURN(node_id_, ReadSmallFile(NodeIdPath(directory_)));
  if (!IsUuid(node_id_)) {
    return absl::DataLossError(absl::StrCat(
        "read the node id in ", directory_,
        "/node_id: the file does not hold a UUID; remove the file, and the daemon registers as a new node"));
  }

  uint64_t last = 0;
  absl::StatusOr<std::string> text = ReadSmallFile(absl::StrCat(directory_, "/incarnation"));
  if (!text.ok() && !absl::IsNotFound(text.status())) return text.status();
  if (text.ok() && (!absl::SimpleAtoi(*text, &last) || last >= kIncarnationsEnd - 1)) {
    return absl::DataLossError(absl::StrCat("read ", directory_,
                                            "/incarnation: the file does not hold a number below ",
                                            kIncarnationsEnd, "; remove the file"));
  }
  // The clock as well as the counter: a state directory restored from a backup must not fall behind itself.
  incarnation_ = std::max(last + 1, static_cast<uint64_t>(absl::ToUnixNanos(absl::Now())));
  return ReplaceSmallFile(absl::StrCat(directory_, "/incarnation"), absl::StrCat(incarnation_));
}

absl::StatusOr<std::string> ReadBootId() { return ReadSmallFile("/proc/sys/kernel/random/boot_id"); }

}  // namespace tensorcast::daemon
