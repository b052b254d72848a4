// Asks the nodes of a cluster for their statuses. Keeps a connection to each node, and each node's last two
// answers for rates.
//
// Thread-safe. If a node does not answer within kNodeTimeout, its status is an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "cli/dashboard/cached.h"
#include "client/admin.h"
#include "proto/daemon.pb.h"

namespace tensorcast::dashboard {

inline constexpr size_t kMaxAskedNodes = 128;  // max nodes per poll
inline constexpr absl::Duration kNodeTimeout = absl::Seconds(2);

// The counters of one status, to compare with the next status.
struct NodeCounters {
  SteadyTime at;
  std::map<std::string, uint64_t> transfer_bytes;  // of running transfers, by id
  uint64_t received = 0;                           // bytes, over all lanes
  uint64_t served = 0;
};

struct NodeStatus {
  v1::GetStatusResponse status;
  NodeCounters counters;
  std::optional<NodeCounters> previous;  // of the previous answer; nullopt: there was none
};

class NodeStatuses {
 public:
  // `options`: returns the options for connecting to a daemon; this class sets the address.
  explicit NodeStatuses(std::function<absl::StatusOr<client::ClientOptions>()> options)
      : options_(std::move(options)) {}

  // The status of each of `nodes`, in their order. Asks a few nodes at a time.
  std::vector<Cached<NodeStatus>::Value> Ask(std::span<const v1::Node> nodes) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::shared_ptr<client::AdminClient>> ClientOf(const v1::Node& node)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Sets the connection to the daemon that the dashboard is connected to. That daemon may not be reachable at
  // its node's address.
  void SetOwn(const std::string& node_id, std::shared_ptr<client::AdminClient> client)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    Cached<NodeStatus> status;
    absl::Mutex mutex;
    std::shared_ptr<client::AdminClient> client ABSL_GUARDED_BY(mutex);
    std::string address ABSL_GUARDED_BY(mutex);
    bool own ABSL_GUARDED_BY(mutex) = false;
    std::optional<NodeCounters> last ABSL_GUARDED_BY(mutex);
  };
  std::shared_ptr<Entry> EntryOf(const std::string& node_id) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::shared_ptr<client::AdminClient>> ConnectTo(Entry& entry, const v1::Node& node);
  absl::StatusOr<NodeStatus> Fetch(Entry& entry, const v1::Node& node);

  const std::function<absl::StatusOr<client::ClientOptions>()> options_;
  absl::Mutex mutex_;
  bool asking_ ABSL_GUARDED_BY(mutex_) = false;  // only one Ask at a time runs its threads
  std::map<std::string, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);  // by node id
};

}  // namespace tensorcast::dashboard
