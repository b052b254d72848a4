// A bounded queue of the replica changes that the link has not sent to the global store yet. A replica has at
// most one entry, with its latest state. If the queue is full, all entries are dropped (TakeOverflow), and
// the link sends a whole inventory. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/trace_context.h"
#include "core/engine/engine.h"

namespace tensorcast::daemon {

// A replica in its latest state, and the trace span of its last change (invalid without tracing).
struct ReplicaChange {
  ReplicaInfo replica;
  TraceContext cause;
};

class ReplicaFeed : public ReplicaListener {
 public:
  using TransferSink = std::function<void(const TransferReport&)>;

  // `transfers` (may be null) is called for every ended transfer, on the thread of its ingest.
  explicit ReplicaFeed(TransferSink transfers, size_t capacity = 4096)
      : transfers_(std::move(transfers)), capacity_(capacity) {}

  // Sets the function that the feed calls, without a lock held, after each urgent change (README.md). Call
  // this before the first change.
  void SetWake(std::function<void()> wake);

  void OnReplicaChanged(const ReplicaInfo& replica, const std::shared_ptr<const Manifest>& manifest) override;
  void OnTransferEnded(const TransferReport& report) override;

  // Queues this state of the replica, whether it changed or not.
  void Touch(const ReplicaInfo& replica);

  // Removes the oldest entries from the queue and returns them.
  std::vector<ReplicaChange> Take(size_t max);
  // Empties the queue. Call this before taking an inventory.
  void Clear();
  bool empty() const;
  // The number of changes so far.
  uint64_t changes() const;
  // True once after entries were dropped.
  bool TakeOverflow();

 private:
  void Add(const ReplicaInfo& replica, bool urgent);

  const TransferSink transfers_;
  const size_t capacity_;
  mutable absl::Mutex mutex_;
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, ReplicaChange> latest_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> order_ ABSL_GUARDED_BY(mutex_);  // the keys of latest_, oldest first
  bool overflowed_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tensorcast::daemon
