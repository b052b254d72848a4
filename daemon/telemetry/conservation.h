// Compares the bytes that receiver and source of a pull report, after the receiver has closed the pull at its
// source. The source must have served at least the bytes that arrived, and at most the bytes that the
// receiver requested. A violation is a defect of the receiver or the source. Violations are counted
// (tc_conservation_checks_total), logged, and shown by `status`. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

// The bytes of one pull at its receiver.
struct PulledBytes {
  std::atomic<uint64_t> asked{0};    // bytes of the fetches that began
  std::atomic<uint64_t> arrived{0};  // bytes of the fetches that succeeded
};

class Conservation {
 public:
  // Compares a pull that both ends closed. `peer`: the source's name. `served`: bytes in the source's report.
  void ComparePull(std::string_view grant_id, std::string_view peer, const PulledBytes& pulled,
                   uint64_t served) ABSL_LOCKS_EXCLUDED(mutex_);
  // The results of all comparisons since the daemon started.
  v1::Conservation status() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable absl::Mutex mutex_;
  v1::Conservation status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
