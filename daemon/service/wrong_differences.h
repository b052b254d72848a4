// Differences that made wrong bytes on this node although they match their manifests. This node does not
// apply them again, and reports them to the global store, which deletes a difference that two nodes report.
//
// A receiver that applied only one difference knows that this one is wrong. If it applied several in one
// pass, any of them may be wrong, so it uses none of them again and reports none. A node that is one version
// behind applies the wrong difference alone, and reports it. An unused difference only costs bytes.
// Thread-safe.
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
