// The tasks that the global store hands to this node with heartbeats: each is materialised here, and the
// next heartbeats tell how it goes. A heartbeat's answer names all that the node is to work on, so what it
// leaves out was taken back, and its transfer is cancelled. How an attempt ended is told until an answer
// shows that it was heard.
//
// Report and Answered belong to one heartbeat, and come in that order on one thread; the rest is thread-safe.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "daemon/service/replicas.h"
#include "proto/global_store.pb.h"
#include "rpc/executor.h"

namespace tensorcast::daemon {

class ReplicationTasks {
 public:
  // Brings the replica here; what is there already is done at once.
  using Materialize = std::function<absl::Status(
      const RequestContext& context, const v1::ReplicationTask& task, const OnProgress& on_progress)>;

  // `on_ended` is called, with no lock held, when an attempt has ended: it makes the next heartbeat come
  // soon.
  ReplicationTasks(Materialize materialize, std::function<void()> on_ended)
      : materialize_(std::move(materialize)), on_ended_(std::move(on_ended)) {}
  ~ReplicationTasks() { Stop(); }

  // Begins nothing any more. What runs goes on, and is reported.
  void Drain() ABSL_LOCKS_EXCLUDED(mutex_);
  // Drains, cancels what runs, and waits. What was cut short is not reported: the global store hands
  // it out again to the daemon that comes after this one.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  void Report(v1::HeartbeatRequest* heartbeat) ABSL_LOCKS_EXCLUDED(mutex_);
  void Answered(const v1::HeartbeatResponse& response) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Attempt {
    Cancellation cancellation;
    bool taken_back = false;  // goes when it has ended, and is not reported
    bool told = false;        // its end is in the last report
    uint64_t bytes = 0;
    uint64_t bytes_total = 0;
    std::optional<absl::Status> ended;
  };

  void Begin(const v1::ReplicationTask& task) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Run(const v1::ReplicationTask& task, const Cancellation& cancellation)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void End(const std::string& task_id, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  const Materialize materialize_;
  const std::function<void()> on_ended_;
  absl::Mutex mutex_;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, Attempt> attempts_ ABSL_GUARDED_BY(mutex_);  // by task id
  // Last: what runs on it uses the others.
  rpc::Executor executor_{rpc::Executor::Options{.max_threads = 16}};
};

}  // namespace tensorcast::daemon
