// The identity of this node: the state directory's lock, node id and incarnation.
//
// The node id is a UUID made once and kept; the incarnation grows with each start, so that what an earlier
// process of this node still sends is recognised as old. One process at a time may hold a state directory:
// the lock is on the file with the node id, so it holds by whatever path that is reached, no two processes
// are one node of it, and it ends with the process. Room for the next start is kept there, too. Thread-safe
// once open.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/handles/handles.h"

namespace tensorcast::daemon {

class NodeState {
 public:
  // Creates the directory if need be. FAILED_PRECONDITION when another daemon holds it, DATA_LOSS when a file
  // in it is damaged.
  static absl::StatusOr<std::unique_ptr<NodeState>> Open(const std::string& directory);

  // The id of the node with this directory, which must exist; an id is made if there is none. For what names
  // the node before it is opened. FAILED_PRECONDITION when another daemon holds the directory.
  static absl::StatusOr<std::string> NodeId(const std::string& directory);

  // To be called once the start is over: from here on room is kept for the next one.
  void KeepRoom() const;

  const std::string& directory() const { return directory_; }
  const std::string& node_id() const { return node_id_; }
  uint64_t incarnation() const { return incarnation_; }

 private:
  NodeState(std::string directory, UniqueFd lock)
      : directory_(std::move(directory)), lock_(std::move(lock)) {}
  absl::Status Load();

  const std::string directory_;
  const UniqueFd lock_;  // its flock ends when it is closed
  std::string node_id_;
  uint64_t incarnation_ = 0;
};

// The kernel's boot id: the same for all processes of a host (and its containers), another after a reboot.
absl::StatusOr<std::string> ReadBootId();

}  // namespace tensorcast::daemon
