// The differences that made wrong bytes on this node though they are as they were published: they are not
// applied here again, and the global store is told. It deletes one that two nodes report.
//
// A receiver that applied one difference alone knows that this one is wrong. Of several that it folded into
// one pass any may be, so it applies none of them again and reports none: followers one version behind apply
// the wrong one alone. Not using a difference costs bytes, and nothing else. Thread-safe.
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
  // Tells the global store. Bounded in time.
  using Report = std::function<absl::Status(const std::string& difference_id)>;

  // `report` may be null: none is told.
  explicit WrongDifferences(Report report) : report_(std::move(report)) {}

  // A chunk that was made by these differences together is wrong. Blocks for the report.
  void Note(const std::vector<std::string>& path);
  bool Contains(const std::string& difference_id) const;

 private:
  const Report report_;
  mutable absl::Mutex mutex_;
  std::set<std::string> wrong_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
