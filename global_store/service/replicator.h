// Asks daemons to make a replica of an artifact: many at once, waiting for all, or one without waiting.
// Private to this folder. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/request_context.h"
#include "proto/global_store.pb.h"
#include "rpc/credentials.h"
#include "rpc/executor.h"

namespace tensorcast::global_store {

class Replicator {
 public:
  // `credentials` for its calls; null: those are in clear.
  explicit Replicator(std::shared_ptr<const rpc::Credentials> credentials)
      : credentials_(std::move(credentials)) {}

  struct Target {
    std::string node_id;
    v1::Location location;
    std::string address;  // of the node's StoreDaemon service
    absl::Status error;   // known before asking; then it is not asked
  };

  // One result a target, in their order; a target's failure is in its result. Ends with the context at the
  // latest.
  v1::ReplicateArtifactResponse Replicate(const RequestContext& context, const std::string& artifact_id,
                                          std::vector<Target> targets);

  // Asks one daemon and waits for it.
  absl::Status Materialize(const RequestContext& context, const std::string& artifact_id,
                           const v1::Location& location, const std::string& address);
  // Runs `task`, which may wait for daemons, on a thread of this. REQUIRES: what it waits for ends before
  // this is destroyed.
  absl::Status Start(rpc::Executor::Task task) { return executor_.Schedule(std::move(task)); }

 private:
  const std::shared_ptr<const rpc::Credentials> credentials_;
  // Apart from the service's own executor, so that those who wait here cannot starve it.
  rpc::Executor executor_;
};

}  // namespace tensorcast::global_store
