#include "daemon/peer/node_state.h"

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
#include "core/status/status.h"
#include "otel/api/request_context.h"

namespace tensorcast::daemon {
namespace {

constexpr size_t kUuidLength = 36;

// The whole of a small file, without white space at its ends. NOT_FOUND when there is none.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) {
    return ErrnoStatus(errno, "open", path);
  }
  char buffer[256];
  const ssize_t got = read(file.get(), buffer, sizeof(buffer));
  if (got < 0) {
    return ErrnoStatus(errno, "read", path);
  }
  return std::string(absl::StripAsciiWhitespace(std::string_view(buffer, got)));
}

absl::Status SyncDirectory(const std::string& directory) {
  UniqueFd handle(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle || fsync(handle.get()) != 0) {
    return ErrnoStatus(errno, "fsync", directory);
  }
  return absl::OkStatus();
}

// A reader sees the old content or the new, whenever the power goes.
absl::Status ReplaceSmallFile(const std::string& directory, const std::string& name,
                              std::string_view content) {
  const std::string path = absl::StrCat(directory, "/", name);
  const std::string temporary = absl::StrCat(path, ".new");
  UniqueFd file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file) {
    return ErrnoStatus(errno, "open", temporary);
  }
  const std::string line = absl::StrCat(content, "\n");
  if (write(file.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()) ||
      fsync(file.get()) != 0) {
    return ErrnoStatus(errno, "write", temporary);
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    return ErrnoStatus(errno, "rename", path);
  }
  return SyncDirectory(directory);
}

}  // namespace

absl::StatusOr<std::unique_ptr<NodeState>> NodeState::Open(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return ErrnoStatus(error.value(), "create state directory", directory);
  }
  const std::string lock_path = absl::StrCat(directory, "/lock");
  UniqueFd lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock) {
    return ErrnoStatus(errno, "open", lock_path);
  }
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return errno != EWOULDBLOCK ? ErrnoStatus(errno, "lock", lock_path)
                                : absl::FailedPreconditionError(
                                      absl::StrCat("another daemon uses the state directory ", directory,
                                                   "; stop it, or give this one a state_dir of its own"));
  }
  std::unique_ptr<NodeState> state(new NodeState(directory, std::move(lock)));
  TC_RETURN_IF_ERROR(state->Load());
  return state;
}

absl::Status NodeState::Load() {
  absl::StatusOr<std::string> id = ReadSmallFile(absl::StrCat(directory_, "/node_id"));
  if (absl::IsNotFound(id.status())) {
    id = NewUuid();
    TC_RETURN_IF_ERROR(ReplaceSmallFile(directory_, "node_id", *id));
  }
  TC_RETURN_IF_ERROR(id.status());
  if (id->size() != kUuidLength) {
    return absl::DataLossError(
        absl::StrCat(directory_, "/node_id does not hold a UUID; remove it to become a new node"));
  }
  node_id_ = *std::move(id);

  uint64_t last = 0;
  absl::StatusOr<std::string> text = ReadSmallFile(absl::StrCat(directory_, "/incarnation"));
  if (!text.ok() && !absl::IsNotFound(text.status())) {
    return text.status();
  }
  if (text.ok() && !absl::SimpleAtoi(*text, &last)) {
    return absl::DataLossError(absl::StrCat(directory_, "/incarnation does not hold a number; remove it"));
  }
  // The clock as well as the counter: a state directory restored from a backup must not fall behind itself.
  incarnation_ = std::max(last + 1, static_cast<uint64_t>(absl::ToUnixNanos(absl::Now())));
  return ReplaceSmallFile(directory_, "incarnation", absl::StrCat(incarnation_));
}

absl::StatusOr<std::string> ReadBootId() { return ReadSmallFile("/proc/sys/kernel/random/boot_id"); }

}  // namespace tensorcast::daemon
