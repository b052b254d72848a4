// The keeper: a process that holds descriptors under names for a daemon, and does nothing else. It outlives
// the daemon, however that ends, and hands them to the next one.
//
// Over a unix socket of the daemon's own user, in messages of 256 bytes: a letter, a name, padding. P: hold
// this descriptor under the name, in the place of another one; D: let go of it; L: give all, answered by an N
// for each with its descriptor, then an E. Nothing else is answered. One daemon is served at a time: a new
// connection ends the one before, after what that said was heard.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/posix/unique_fd.h"

namespace tensorcast::daemon {

inline constexpr size_t kMaxKeptName = 248;

struct KeptDescriptor {
  std::string name;
  UniqueFd fd;
};

// Another descriptor of the same file, for the keeper.
absl::StatusOr<UniqueFd> Duplicate(int fd);

// Serves on `socket` until no daemon was connected for `linger`. `ready_fd` is closed as soon as it listens.
absl::Status RunKeeper(const std::string& socket, absl::Duration linger, int ready_fd);

// The daemon's end. Starts a keeper where there is none, and another one when that was killed, which is then
// told everything anew. Thread-safe; a call may wait for the keeper for some milliseconds.
class KeeperClient {
 public:
  // `argv` makes this program call RunKeeper; "--ready-fd=3" is added.
  KeeperClient(std::string socket, std::vector<std::string> argv)
      : socket_path_(std::move(socket)), argv_(std::move(argv)) {}
  KeeperClient(const KeeperClient&) = delete;
  KeeperClient& operator=(const KeeperClient&) = delete;

  // Connects, and takes what the keeper has from a daemon of before; those stay with the keeper. To be called
  // first, once.
  absl::StatusOr<std::vector<KeptDescriptor>> Open();
  // A descriptor that could not be made is logged, and nothing is kept.
  void Put(const std::string& name, absl::StatusOr<UniqueFd> fd);
  void Drop(const std::string& name);
  // Looks whether the keeper is there, and mends it. To be called now and then.
  void Mend();

 private:
  absl::Status Connect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status StartKeeper() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Send(char what, std::string_view name, int fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string socket_path_;
  const std::vector<std::string> argv_;
  absl::Mutex mutex_;
  pid_t keeper_pid_ ABSL_GUARDED_BY(mutex_) = -1;  // of the last one started here
  UniqueFd socket_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, UniqueFd> held_ ABSL_GUARDED_BY(mutex_);  // that the keeper should have
};

}  // namespace tensorcast::daemon
