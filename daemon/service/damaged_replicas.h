// Replaces a replica when its bytes stop matching their digests (probably bad memory). Drops the replica,
// tells the attached processes, and makes a new replica from another source.
//
// Owns a thread. Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/task_loop.h"
#include "core/engine/engine.h"
#include "core/handles/handle_server.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

class DamagedReplicas {
 public:
  struct Options {
    StoreEngine* engine = nullptr;  // all must outlive this object
    HandleServer* handles = nullptr;
    // Makes a replica of the same artifact at the same location. Returns the new replica's id.
    std::function<absl::StatusOr<std::string>(const RequestContext& context,
                                              const v1::DamagedReplica& damaged)>
        replace;
    absl::Duration retry_interval = absl::Seconds(2);  // doubles with each try
    int tries = 8;
  };

  explicit DamagedReplicas(Options options) : options_(std::move(options)) {}
  ~DamagedReplicas();  // Cancels running replacements.

  // Drops the replica and tells its holders. The thread makes the new replica later.
  void Note(v1::DamagedReplica damaged);

  // Adds the remembered damaged replicas, newest first.
  void Fill(google::protobuf::RepeatedPtrField<v1::DamagedReplica>* out) const;

 private:
  void Replace(const v1::DamagedReplica& damaged);

  const Options options_;
  const Cancellation cancellation_;
  mutable absl::Mutex mutex_;
  std::deque<v1::DamagedReplica> found_ ABSL_GUARDED_BY(mutex_);  // newest first
  TaskLoop replacing_;                                            // last: its tasks use the other members
};

}  // namespace tensorcast::daemon
