// The log of the last transfers to this node, and of the last pulls that it served, newest first. `status`
// shows both, so that operators can examine a slow transfer. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/replica/transfer_report.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

using BytesByLane = std::map<std::string, uint64_t>;

// Adds the bytes between this daemon and others, by lane.
inline void AddBytes(const TransferReport& report, BytesByLane* bytes) {
  for (const StageReport& stage : report.stages) {
    const bool from_another = !stage.source.grant_id.empty();
    if (stage.stage == Stage::kFetch && from_another) (*bytes)[stage.source.lane] += stage.bytes;
  }
}
inline void AddBytes(const v1::ServeReport& report, BytesByLane* bytes) {
  (*bytes)[report.lane()] += report.bytes();
}

template <class Report>
class ReportLog {
 public:
  explicit ReportLog(size_t capacity = 32) : capacity_(capacity) {}

  void Add(const Report& report) {
    absl::MutexLock lock(&mutex_);
    AddBytes(report, &bytes_);
    entries_.push_front(report);
    if (entries_.size() > capacity_) entries_.pop_back();
  }

  std::vector<Report> Newest() const {
    absl::MutexLock lock(&mutex_);
    return {entries_.begin(), entries_.end()};
  }

  // The sum over all added reports, including those that the log no longer has.
  BytesByLane bytes() const {
    absl::MutexLock lock(&mutex_);
    return bytes_;
  }

 private:
  const size_t capacity_;
  mutable absl::Mutex mutex_;
  std::deque<Report> entries_ ABSL_GUARDED_BY(mutex_);
  BytesByLane bytes_ ABSL_GUARDED_BY(mutex_);
};

using TransferLog = ReportLog<TransferReport>;
using ServeLog = ReportLog<v1::ServeReport>;

}  // namespace tensorcast::daemon
