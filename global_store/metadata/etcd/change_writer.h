// Makes the changes in etcd, each at most once, in the order of the calls.
//
//   Write ─► queue ─► one waiting caller sends its change, and those that join it, as one transaction
//
// A transaction compares the leader key and the number of the previous change, and replaces that number with
// its own. So a repeated transaction, or one that etcd carries out late, changes nothing. The outcome of a
// transaction is known before the next one is sent. If the outcome stays unknown, or another store leads,
// this leadership ends.
//
// Errors: UNAVAILABLE once this process no longer leads; then it is unknown whether the change happened.
// RESOURCE_EXHAUSTED for a change that is larger than etcd accepts. Other errors are etcd's refusals.
// Thread-safe; calls block.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "etcd/rpc.pb.h"
#include "global_store/metadata/etcd/client.h"
#include "global_store/metadata/etcd/leadership.h"
#include "global_store/metadata/etcd/operations.h"

namespace tensorcast::global_store::etcd {

// How long a request to etcd is retried; shorter if this process stops leading.
inline constexpr absl::Duration kPatience = absl::Seconds(10);

class ChangeWriter {
 public:
  // `client` and `leadership` must outlive this object. `sequence_key`: the key that has the number of the
  // last change.
  ChangeWriter(Client* client, Leadership* leadership, std::string sequence_key)
      : client_(*client), leadership_(*leadership), sequence_key_(std::move(sequence_key)) {}

  // Returns once the outcome is known.
  absl::Status Write(const Operations& operations) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A change that waits for its transaction.
  struct Waiting {
    const Operations* operations;
    bool done = false;
    absl::Status status;
  };

  absl::Status WriteTogether(const Operations& operations);
  etcdserverpb::TxnRequest ChangeOf(const Operations& operations, uint64_t own) const;
  absl::Status EndLeadership(const absl::Status& why);

  Client& client_;
  Leadership& leadership_;
  const std::string sequence_key_;

  absl::Mutex mutex_;
  std::deque<Waiting*> waiting_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // one of the waiting callers writes, for several

  // Only the writing caller uses the next two: the last known value of the sequence key, and the last value
  // that a transaction tried to set.
  uint64_t sequence_ = 0;
  uint64_t tried_ = 0;
};

}  // namespace tensorcast::global_store::etcd
