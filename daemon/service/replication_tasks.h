// The tasks that the global store gives to this node in answers to heartbeats. This node makes each replica
// and reports the progress with the next heartbeats. An answer names all tasks of the node. This node cancels
// transfers for tasks that the answer does not name. Every heartbeat reports the end of an attempt, until a
// heartbeat with this report is answered.
//
// Call Report and then Answered for each heartbeat, on one thread; all other functions are thread-safe.
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
  // Makes the replica on this node; returns at once if this node already has the replica.
  using Materialize = std::function<absl::Status(
      const RequestContext& context, const v1::ReplicationTask& task, const OnProgress& on_progress)>;

  // `on_ended` is called, without a lock, when the next heartbeat must be sent soon to report the end of an
  // attempt.
  ReplicationTasks(Materialize materialize, std::function<void()> on_ended)
      : materialize_(std::move(materialize)), on_ended_(std::move(on_ended)) {}
  ~ReplicationTasks() { Stop(); }

  // Begins no more tasks. Running tasks go on and are reported.
  void Drain() ABSL_LOCKS_EXCLUDED(mutex_);
  // Drains, cancels the running attempts, and waits until they have ended. Attempts that fail now are not
  // reported: the global store gives their tasks to the next daemon of this node.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  void Report(v1::HeartbeatRequest* heartbeat) ABSL_LOCKS_EXCLUDED(mutex_);
  void Answered(const v1::HeartbeatResponse& response) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Attempt {
    Cancellation cancellation;
    bool taken_back = false;  // the store cancelled the task: the attempt ends without a report
    bool told = false;        // the last report has the attempt's end
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
  // Last: its tasks use the other members.
  rpc::Executor executor_{rpc::Executor::Options{.max_threads = 16}};
};

}  // namespace tensorcast::daemon
