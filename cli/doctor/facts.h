// The facts that `tensorcast doctor` collects for its checks. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/daemon.pb.h"
#include "proto/global_store.pb.h"

namespace tensorcast::doctor {

struct NodeFacts {
  v1::Node node = {};   // from the global store's list; else from the node's daemon
  bool listed = false;  // true: the global store lists the node
  absl::StatusOr<v1::GetStatusResponse> status = absl::UnknownError("not asked");
  absl::Duration round_trip = {};  // of the call that returned the status
  absl::Time asked = {};           // this host's clock in the middle of that call
};

// One node's attempt to reach another node.
struct ProbeFacts {
  std::string from = {};  // `from` and `to` are names of nodes
  std::string to = {};
  absl::Status call = {};     // the result of the call to `from`
  absl::Status outcome = {};  // if `call` is OK: the result of the attempt by `from`
  absl::Duration round_trip = {};
};

// A folder in which a client of this user looks for a daemon.
struct SocketFolderFacts {
  std::string path = {};
  bool exists = false;
  absl::Status listens = {};  // OK: a daemon listens, and this user may connect
};

struct DiskFacts {
  std::string folder = {};  // of packed artifacts
  uint64_t bytes = 0;       // of its file system
  uint64_t available_bytes = 0;
};

struct Facts {
  absl::Time now = {};
  std::string version = {};                            // of this program
  std::string daemon = {};                             // the address that was tried; empty: none was found
  absl::Status answer = {};                            // of that daemon
  std::vector<SocketFolderFacts> socket_folders = {};  // the searched folders, if no daemon answers
  // The daemon's disk, or the error of reading it; nullopt: the daemon is on another host.
  std::optional<absl::StatusOr<DiskFacts>> disk = {};
  std::vector<NodeFacts> nodes = {};  // the daemon's own node first
  size_t nodes_left_out = 0;
  // The global store's answer, through the daemon.
  absl::StatusOr<v1::GetClusterStatusResponse> cluster = absl::UnknownError("not asked");
  std::vector<ProbeFacts> probes = {};
  size_t probed_nodes = 0;  // number of nodes sampled for probes
};

inline std::string NameOf(const v1::Node& node) { return node.name().empty() ? node.node_id() : node.name(); }

}  // namespace tensorcast::doctor
