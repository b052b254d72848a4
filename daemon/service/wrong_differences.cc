#include "daemon/service/wrong_differences.h"

#include <cstddef>

#include "absl/log/log.h"

namespace tensorcast::daemon {
namespace {

// Keys keep the differences of a few versions. More ids than this are not of any key any more.
constexpr size_t kMaxWrong = 1024;

}  // namespace

void WrongDifferences::Note(const std::vector<std::string>& path) {
  {
    absl::MutexLock lock(&mutex_);
    // A difference that is forgotten here and applied again is found wrong again, by the digests of its
    // target.
    if (wrong_.size() + path.size() > kMaxWrong) wrong_.clear();
    wrong_.insert(path.begin(), path.end());
  }
  if (path.size() != 1 || report_ == nullptr) return;
  const absl::Status reported = report_(path.front());
  LOG_IF(WARNING, !reported.ok()) << "tell the global store that difference " << path.front()
                                  << " makes wrong bytes: " << reported;
}

bool WrongDifferences::Contains(const std::string& difference_id) const {
  absl::MutexLock lock(&mutex_);
  return wrong_.contains(difference_id);
}

}  // namespace tensorcast::daemon
