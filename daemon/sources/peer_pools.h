// Mappings of the segments of other daemons' pools on this host, kept from one pull to the next. A new
// mapping costs about 100 ms per GiB at first touch; a kept mapping costs nothing.
//
// A mapping keeps the peer's memory alive. Therefore Sweep drops the mappings of daemons that are gone, and
// mappings that were unused for long. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/handles/handles.h"

namespace tensorcast::daemon {

// One segment of a pool, mapped for reading.
class SegmentMapping {
 public:
  // `fd` is the segment's descriptor; it may be closed afterwards. INVALID_ARGUMENT if CheckPoolSegment
  // refuses the segment (core/handles/pool_segment.h).
  static absl::StatusOr<std::shared_ptr<SegmentMapping>> Map(int fd, uint64_t bytes);
  ~SegmentMapping();
  SegmentMapping(const SegmentMapping&) = delete;
  SegmentMapping& operator=(const SegmentMapping&) = delete;

  ConstHostSpan bytes() const { return {base_, bytes_}; }

 private:
  SegmentMapping(const std::byte* base, uint64_t bytes) : base_(base), bytes_(bytes) {}

  const std::byte* const base_;
  const uint64_t bytes_;
};

class PeerPools {
 public:
  explicit PeerPools(absl::Duration idle_limit = absl::Minutes(10)) : idle_limit_(idle_limit) {}

  // The mappings of the segments that these handles name, in their order. Makes missing mappings from `fds`,
  // the descriptors that came with the handles. `peer` owns the pool. If the pool id changed, the peer was
  // restarted, and its old mappings are dropped. REQUIRES: the handles are valid.
  absl::StatusOr<std::vector<std::shared_ptr<SegmentMapping>>> Get(const std::string& peer,
                                                                   const HostHandles& handles,
                                                                   std::span<const UniqueFd> fds);

  // Drops the mappings of each peer with no mapping in use, if the mappings were idle for `idle_limit`, or if
  // `alive` is false for the peer.
  void Sweep(SteadyTime now, const std::function<bool(const std::string& peer)>& alive);
  int size() const;  // number of peers

 private:
  struct Entry {
    std::string pool_id;
    std::map<uint32_t, std::shared_ptr<SegmentMapping>> segments;  // by number
    SteadyTime last_used;

    bool InUse() const;
  };

  const absl::Duration idle_limit_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Entry> by_peer_ ABSL_GUARDED_BY(mutex_);
};

// Whether a daemon listens on this handle socket, for Sweep's `alive`. Also true if this process has no free
// descriptor for the check.
bool HasListener(const std::string& handle_socket);

}  // namespace tensorcast::daemon
