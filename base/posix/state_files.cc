#include "base/posix/state_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/posix/unique_fd.h"
#include "base/status.h"

namespace tensorcast {
namespace {

constexpr mode_t kOthers = 0077;  // the permissions of group and world
constexpr mode_t kOthersWrite = 0022;
constexpr mode_t kOthersPass = 0011;
constexpr mode_t kPermissions = 07777;

absl::Status MakeFolder(const std::string& path) {
  std::error_code error;
  const std::filesystem::path above = std::filesystem::path(path).parent_path();
  if (!above.empty()) std::filesystem::create_directories(above, error);
  if (error) return ErrnoStatus(error.value(), "create folder", above.string());
  // A folder that another process made meanwhile is judged like any that was there before.
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoStatus(errno, "create folder", path);
  return absl::OkStatus();
}

// Whether the permissions of the folder may be changed. A folder with content of another kind may need those
// that it has.
absl::StatusOr<bool> IsOurs(const std::string& path, std::string_view own_entry) {
  std::error_code error;
  if (!own_entry.empty() && std::filesystem::exists(absl::StrCat(path, "/", own_entry), error)) return true;
  const bool empty = std::filesystem::is_empty(path, error);
  if (error) return ErrnoStatus(error.value(), "list folder", path);
  return empty;
}

absl::Status WriteAndSync(int file, const std::string& path, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = write(file, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return ErrnoStatus(written < 0 ? errno : ENOSPC, "write to", path);
    content.remove_prefix(written);
  }
  return fsync(file) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "write to", path);
}

// The permissions of our folder when it is private.
mode_t PrivateMode(const struct stat& found, mode_t others) {
  const mode_t mode = found.st_mode & kPermissions;
  // Others that may only pass through keep that: another process of this user shares the folder with them.
  const bool passable = (mode & kOthers & ~kOthersPass) == 0;
  return (mode & ~kOthers) | others | (passable ? mode & kOthersPass : 0);
}

// The mode that the folder is to get, or why it cannot be used; nullopt: it stays as it is.
absl::StatusOr<std::optional<mode_t>> JudgeFolder(const std::string& path, const struct stat& found,
                                                  std::string_view own_entry, mode_t others) {
  if (found.st_uid != geteuid() && found.st_uid != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("use folder ", path, ": the folder belongs to user ", found.st_uid, ", and user ",
                     geteuid(), " runs this process; choose a folder of user ", geteuid()));
  }
  const mode_t wanted = PrivateMode(found, others);
  if (found.st_uid == geteuid() && (found.st_mode & kPermissions) != wanted) {
    TC_ASSIGN_OR_RETURN(const bool ours, IsOurs(path, own_entry));
    if (ours) return wanted;
  }
  if ((found.st_mode & kOthersWrite) != 0) {
    return absl::PermissionDeniedError(
        absl::StrFormat("use folder %s: other users may write to the folder (mode %04o); choose another "
                        "folder, or run chmod 700",
                        path, found.st_mode & kPermissions));
  }
  return std::nullopt;
}

absl::Status NotThere(std::string_view kind, const std::string& path) {
  return absl::FailedPreconditionError(absl::StrCat(
      "use ", kind, " ", path, ": the path exists and is not a ", kind, "; choose another path"));
}

// The block size of common file systems: less room is of no use.
constexpr uint64_t kMinReserveBytes = 4096;

}  // namespace

std::string ReadEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

absl::Status SyncFolder(const std::string& path) {
  const UniqueFd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || fsync(folder.get()) != 0) return ErrnoStatus(errno, "write to folder", path);
  return absl::OkStatus();
}

std::string DefaultStateFolder() {
  if (geteuid() == 0) return "/var/lib/tensorcast";
  if (const std::string state = ReadEnvironment("XDG_STATE_HOME"); !state.empty()) {
    return state + "/tensorcast";
  }
  if (const std::string home = ReadEnvironment("HOME"); !home.empty()) {
    return home + "/.local/state/tensorcast";
  }
  // Another user can make this folder first; MakePrivateFolder refuses it then.
  return absl::StrCat("/tmp/tensorcast-", geteuid());
}

// The order: make the folder where it is missing, open it, and from then on judge and change what was opened.
// So a path that another process exchanges in between cannot make this change a folder that it did not judge.
absl::Status MakePrivateFolder(const std::string& path, std::string_view own_entry, mode_t others) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) {
    if (errno != ENOENT) return ErrnoStatus(errno, "look at folder", path);
    TC_RETURN_IF_ERROR(MakeFolder(path));
  }
  // The folder itself, whatever becomes of the path meanwhile.
  const UniqueFd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return ErrnoStatus(errno, "open folder", path);
  if (fstat(folder.get(), &found) != 0) return ErrnoStatus(errno, "look at folder", path);
  TC_ASSIGN_OR_RETURN(const std::optional<mode_t> mode, JudgeFolder(path, found, own_entry, others));
  if (mode.has_value() && fchmod(folder.get(), *mode) != 0) {
    return ErrnoStatus(errno, "set the mode of folder", path);
  }
  return absl::OkStatus();
}

absl::Status CheckPrivateFolder(const std::string& path, std::string_view own_entry) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(errno, "look at folder", path);
  }
  if (!S_ISDIR(found.st_mode)) return NotThere("folder", path);
  return JudgeFolder(path, found, own_entry, /*others=*/0).status();
}

absl::Status MakePrivateFile(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600));
  if (!file) return ErrnoStatus(errno, "open", path);
  struct stat found;
  if (fstat(file.get(), &found) != 0) return ErrnoStatus(errno, "look at", path);
  if (!S_ISREG(found.st_mode)) return NotThere("file", path);
  // Only its owner may change a file's mode, so a file of another user keeps its own.
  if (found.st_uid != geteuid() || (found.st_mode & kOthers) == 0) return absl::OkStatus();
  if (fchmod(file.get(), found.st_mode & kPermissions & ~kOthers) != 0) {
    return ErrnoStatus(errno, "set the mode of", path);
  }
  return absl::OkStatus();
}

absl::Status ReplaceFile(const std::string& path, std::string_view content, mode_t mode) {
  const std::string fresh = absl::StrCat(path, ".new");
  unlink(fresh.c_str());  // of a write that the power cut short
  const UniqueFd file(open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!file) return ErrnoStatus(errno, "create", fresh);
  // The content is on the disk before the name points to it, and the new name is durable when its folder is
  // synced.
  absl::Status written = WriteAndSync(file.get(), fresh, content);
  if (written.ok() && rename(fresh.c_str(), path.c_str()) != 0) {
    written = ErrnoStatus(errno, "rename to", path);
  }
  if (!written.ok()) {
    unlink(fresh.c_str());
    return written;
  }
  const std::filesystem::path above = std::filesystem::path(path).parent_path();
  return SyncFolder(above.empty() ? "." : above.string());
}

void ReleaseSpace(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return;
  LOG(WARNING) << ErrnoStatus(errno, "remove the file that reserves disk space,", path);
}

void ReserveSpace(const std::string& path, uint64_t bytes) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  int error = file ? ENOSPC : errno;
  // posix_fallocate takes blocks, where a sparse file would reserve nothing. Half as much is tried where
  // there is not enough room.
  for (; file && error == ENOSPC && bytes >= kMinReserveBytes; bytes /= 2) {
    error = posix_fallocate(file.get(), 0, static_cast<off_t>(bytes));
  }
  if (error == 0) return;
  LOG(WARNING) << ErrnoStatus(error, "reserve disk space for the next start in", path)
               << "; free some space on that disk, or the next start may fail";
  if (file) unlink(path.c_str());
}

}  // namespace tensorcast
