// Differences that made wrong bytes on this node although they match their manifests. This node never applies
// such a difference again. The global store deletes a difference that two nodes report.
//
// A difference that was applied alone is reported. If several differences were applied in one pass, the wrong
// difference is unknown: this node avoids all of them and reports none. Thread-safe.
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
  // Reports the difference to the global store. Returns within a bounded time.
  using Report = std::function<absl::Status(const std::string& difference_id)>;

  // `report` may be null: then nothing is reported.
  explicit WrongDifferences(Report report) : report_(std::move(report)) {}

  // Records that a chunk made with these differences is wrong. Blocks until the report has ended.
  void Note(const std::vector<std::string>& path);
  bool Contains(const std::string& difference_id) const;

 private:
  const Report report_;
  mutable absl::Mutex mutex_;
  std::set<std::string> wrong_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
