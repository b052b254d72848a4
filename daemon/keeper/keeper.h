// The keeper: a process that holds named descriptors for a daemon. The keeper outlives the daemon and hands
// the descriptors to the next daemon.
//
// The protocol, over a unix socket of the daemon's own user, has messages of 256 bytes: a letter, a name,
// padding.
//
// - P: the keeper holds the attached descriptor under the name, and releases an earlier one of that name.
// - D: the keeper releases the descriptor of this name.
// - L: the keeper answers with an N message for each name, with the descriptor attached, and then with E.
//
// The keeper answers only L. It serves one daemon at a time: when another daemon connects, the keeper
// processes the messages of the previous connection, and then ends that connection.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
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

// Returns another descriptor of the same file, for the keeper.
absl::StatusOr<UniqueFd> Duplicate(int fd);

// Serves on `socket` until no daemon was connected for the time `linger`. Closes `ready_fd` when listening.
absl::Status RunKeeper(const std::string& socket, absl::Duration linger, int ready_fd);

// The daemon's client of the keeper. Starts a keeper if none runs. If the keeper was killed, starts another
// keeper and sends all descriptors again. Thread-safe; a call may wait some milliseconds for the keeper.
class KeeperClient {
 public:
  // `argv` is the command line that makes this program call RunKeeper; KeeperClient adds "--ready-fd=3".
  KeeperClient(std::string socket, std::vector<std::string> argv)
      : socket_path_(std::move(socket)), argv_(std::move(argv)) {}
  KeeperClient(const KeeperClient&) = delete;
  KeeperClient& operator=(const KeeperClient&) = delete;

  // Connects, and returns the descriptors that a previous daemon left; the keeper also continues to hold
  // them. Call Open first, once.
  absl::StatusOr<std::vector<KeptDescriptor>> Open();
  // Lets the keeper hold `fd` under the name. If `fd` is an error, only logs the error.
  void Put(const std::string& name, absl::StatusOr<UniqueFd> fd);
  void Drop(const std::string& name);
  // Restarts the keeper if the keeper no longer runs. Call Mend periodically.
  void Mend();

 private:
  absl::Status Connect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status StartKeeper() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Send(char what, std::string_view name, int fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string socket_path_;
  const std::vector<std::string> argv_;
  absl::Mutex mutex_;
  pid_t keeper_pid_ ABSL_GUARDED_BY(mutex_) = -1;  // of the keeper that this object started last
  UniqueFd socket_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, UniqueFd> held_ ABSL_GUARDED_BY(mutex_);  // what the keeper should hold
  // Dropped names that the keeper may still hold, because the message did not reach it.
  absl::flat_hash_set<std::string> to_drop_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
