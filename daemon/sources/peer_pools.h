// Whole-pool mappings of the daemons of this host, kept from one pull to the next: a fresh mapping costs
// about 100 ms a GiB at first touch, one that is kept costs nothing.
//
// A mapping keeps the peer's memory alive, so those of daemons that are gone, or that nobody used for long,
// are dropped by Sweep. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/handles/handles.h"

namespace tensorcast::daemon {

// One pool, mapped for reading.
class PoolMapping {
 public:
  // `fd` is the pool's descriptor; it may be closed afterwards.
  static absl::StatusOr<std::shared_ptr<PoolMapping>> Map(int fd, uint64_t bytes);
  ~PoolMapping();
  PoolMapping(const PoolMapping&) = delete;
  PoolMapping& operator=(const PoolMapping&) = delete;

  // The image behind the extents, in order. INVALID_ARGUMENT when they do not lie in the pool or are too
  // small.
  absl::StatusOr<std::vector<ConstHostSpan>> Spans(const std::vector<Extent>& extents,
                                                   uint64_t image_bytes) const;

 private:
  PoolMapping(const std::byte* base, uint64_t bytes) : base_(base), bytes_(bytes) {}

  const std::byte* const base_;
  const uint64_t bytes_;
};

class PeerPools {
 public:
  explicit PeerPools(absl::Duration idle_limit = absl::Minutes(10)) : idle_limit_(idle_limit) {}

  // The mapping of this pool, made now if need be. `peer` is who owns it: a peer has one pool at a time, and
  // another pool id means that it was restarted.
  absl::StatusOr<std::shared_ptr<PoolMapping>> Get(const std::string& peer, const HostHandles& handles,
                                                   int fd);

  // Drops mappings in nobody's use that are idle for long or whose peer is not `alive`.
  void Sweep(SteadyTime now, const std::function<bool(const std::string& peer)>& alive);
  int size() const;

 private:
  struct Entry {
    std::string pool_id;
    std::shared_ptr<PoolMapping> mapping;
    SteadyTime last_used;
  };

  const absl::Duration idle_limit_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Entry> by_peer_ ABSL_GUARDED_BY(mutex_);
};

// Whether a daemon listens on this handle socket: what Sweep is told of peers. True where it cannot be found
// out for want of a descriptor.
bool SomebodyListens(const std::string& handle_socket);

}  // namespace tensorcast::daemon
