// What became of transfers: the report of a pull that this node served (that of a transfer of its own is
// core/replica/transfer_report.h), and the log of the last ones of each kind, newest first, which `status`
// shows and a person asks for when a load was slow. The log is thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/replica/transfer_report.h"

namespace tensorcast::daemon {

// A pull by another daemon, as the one that serves it sees it.
struct ServeReport {
  std::string grant_id;
  std::string artifact_id;
  std::string replica_id;
  std::string receiver_node_id;
  std::string lane;
  uint64_t bytes = 0;
  uint64_t requests = 0;
  SteadyTime opened;
  SteadyTime first_request;                          // the default: none came yet
  SteadyTime last_completion;                        // of a request; the default likewise
  SteadyTime closed = SteadyTime::InfiniteFuture();  // while it is open
  bool in_place = true;                              // sent from where the replica lies
  absl::Duration reading =
      absl::ZeroDuration();  // else: from a GPU or a disk into buffers, summed over reads
  absl::Status error;        // why it ended, when not because the receiver had all that it wanted
};

using BytesByLane = std::map<std::string, uint64_t>;

// What went between this daemon and others.
inline void AddBytes(const TransferReport& report, BytesByLane* bytes) {
  for (const StageReport& stage : report.stages) {
    const bool from_another = !stage.source.grant_id.empty();
    if (stage.stage == Stage::kFetch && from_another) (*bytes)[stage.source.lane] += stage.bytes;
  }
}
inline void AddBytes(const ServeReport& report, BytesByLane* bytes) { (*bytes)[report.lane] += report.bytes; }

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

  // Of all reports there ever were.
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
using ServeLog = ReportLog<ServeReport>;

}  // namespace tensorcast::daemon
