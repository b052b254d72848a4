// The identity of this node: the state directory's lock, node id and incarnation.
//
// The node id is a UUID, made once. The incarnation grows with each start. One process at a time may hold a
// state directory; the lock ends with the process. Thread-safe once open.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/handles/handles.h"

namespace tensorcast::daemon {

class NodeState {
 public:
  // Creates the directory if it is missing. FAILED_PRECONDITION when another daemon holds the directory,
  // DATA_LOSS when a file in it is damaged.
  static absl::StatusOr<std::unique_ptr<NodeState>> Open(const std::string& directory);

  // The id of this directory's node, for callers that need the id before Open. Makes the id if it is missing.
  // REQUIRES: the directory exists. FAILED_PRECONDITION when another daemon holds the directory.
  static absl::StatusOr<std::string> NodeId(const std::string& directory);

  // Reserves disk space for the next start. Call KeepRoom after the daemon has started.
  void KeepRoom() const;

  const std::string& directory() const { return directory_; }
  const std::string& node_id() const { return node_id_; }
  uint64_t incarnation() const { return incarnation_; }

 private:
  NodeState(std::string directory, UniqueFd lock)
      : directory_(std::move(directory)), lock_(std::move(lock)) {}
  absl::Status Load();

  const std::string directory_;
  const UniqueFd lock_;  // closing ends the flock
  std::string node_id_;
  uint64_t incarnation_ = 0;
};

// The kernel's boot id. All processes of a host and its containers read the same id; a reboot changes it.
absl::StatusOr<std::string> ReadBootId();

}  // namespace tensorcast::daemon
