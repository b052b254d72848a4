// Writes changes to etcd, each at most once, in the order of the calls.
//
//   Write ─► queue ─► one waiting caller sends its change and later ones as one transaction
//
// A transaction checks that this process leads, and that etcd has the number of the previous change. So a
// repeated or late transaction changes nothing. The writer knows the outcome of a transaction before it sends
// the next transaction. If the outcome stays unknown or another store leads, the writer ends this leadership.
//
// Errors: UNAVAILABLE: this process no longer leads, and the change may have happened. RESOURCE_EXHAUSTED:
// the change is larger than etcd accepts. Other errors are those of Client. Thread-safe; calls block.
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

// How long the writer retries a request to etcd. The retries end earlier if this process stops leading.
inline constexpr absl::Duration kPatience = absl::Seconds(10);

class ChangeWriter {
 public:
  // `client` and `leadership` must outlive this object. `sequence_key`: the etcd key that has the number of
  // the last change.
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
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // true while a caller sends a transaction

  // Only the caller that sends a transaction uses the next two fields.
  uint64_t sequence_ = 0;  // last known value of the sequence key
  uint64_t tried_ = 0;     // last value that a transaction tried to set
};

}  // namespace tensorcast::global_store::etcd
