// Differences that made wrong bytes on this node though they match their manifests. They are not applied here
// again, and the global store is told; it deletes a difference that two nodes report.
//
// A receiver that applied only one difference knows that this one is wrong. If it folded several into one
// pass, each may be wrong, so it applies none of them again and reports none: a follower that is one version
// behind applies the wrong one by itself. An unused difference only costs bytes. Thread-safe.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace tensorcast::daemon {

class WrongDifferences {
 public:
  // Tells the global store. Returns within a bounded time.
  using Report = std::function<absl::Status(const std::string& difference_id)>;

  // `report` may be null: then none is reported.
  explicit WrongDifferences(Report report) : report_(std::move(report)) {}

  // Records that a chunk made with these differences is wrong. Blocks for the report.
  void Note(const std::vector<std::string>& path);
  bool Contains(const std::string& difference_id) const;

 private:
  const Report report_;
  mutable absl::Mutex mutex_;
  std::set<std::string> wrong_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
