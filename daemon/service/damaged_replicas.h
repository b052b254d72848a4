// Replaces a replica with bytes that stopped matching their digests while this daemon held it (bad
// memory, most likely): it is not given out any more, the processes that are attached to it are told, and
// another replica is taken from a good source in its place. What was found stands in the status.
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
    StoreEngine* engine = nullptr;  // all must outlive it
    HandleServer* handles = nullptr;
    // Makes a replica of the same artifact at the same place, from any source that is left; its id.
    std::function<absl::StatusOr<std::string>(const RequestContext& context,
                                              const v1::DamagedReplica& damaged)>
        replace;
    absl::Duration retry_interval = absl::Seconds(2);  // doubles with each try
    int tries = 8;
  };

  explicit DamagedReplicas(Options options) : options_(std::move(options)) {}
  ~DamagedReplicas();  // Gives up what is under way.

  // Returns once no caller gets the replica any more and its holders are told; the new one is made later.
  void Note(v1::DamagedReplica damaged);

  // The newest first, those that are remembered.
  void Fill(google::protobuf::RepeatedPtrField<v1::DamagedReplica>* out) const;

 private:
  void Replace(const v1::DamagedReplica& damaged);

  const Options options_;
  const Cancellation cancellation_;
  mutable absl::Mutex mutex_;
  std::deque<v1::DamagedReplica> found_ ABSL_GUARDED_BY(mutex_);  // the newest first
  TaskLoop replacing_;                                            // last: its jobs use the rest
};

}  // namespace tensorcast::daemon
