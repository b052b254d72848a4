// Conservation: what one end of a pull says against what the other end says. The receiver compares when it
// has closed the pull at its source: the source has served at least what arrived, and at most what was asked
// for. Of a pull that was not cut short, all that was asked for arrived, so the three are equal; of one that
// was, they differ by what was under way. A difference beyond that is a defect of one of the ends: it is
// counted (tc_conservation_checks_total), logged, and shown by `status`. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

// Of one pull, at its receiver.
struct PulledBytes {
  std::atomic<uint64_t> asked{0};    // in fetches that were begun
  std::atomic<uint64_t> arrived{0};  // in fetches that ended well
};

class Conservation {
 public:
  // A pull that both ends closed. `peer`: the name of its source.
  void ComparePull(std::string_view grant_id, std::string_view peer, const PulledBytes& pulled,
                   uint64_t served) ABSL_LOCKS_EXCLUDED(mutex_);
  // Since the daemon started.
  v1::Conservation status() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable absl::Mutex mutex_;
  v1::Conservation status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
