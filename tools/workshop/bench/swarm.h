// What the daemons of a fan-out tell of it while it runs: which chunks are somewhere beside its sources, and
// which feed others. Private to tools/workshop/bench.
//
// It borrows the cluster. Thread-compatible. Errors: those of the calls, since every daemon has to answer.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "tools/workshop/bench/bench_cluster.h"

namespace tensorcast::bench {

class Swarm {
 public:
  // The receivers are the nodes from `first_receiver` on.
  Swarm(const RequestContext& context, BenchCluster* cluster, int first_receiver, std::string artifact_id)
      : context_(context),
        cluster_(cluster),
        first_receiver_(first_receiver),
        artifact_id_(std::move(artifact_id)) {}

  // The share of the image's chunks that at least one receiver has; 1: each is somewhere beside the sources.
  absl::StatusOr<double> ShareHeld();
  // Of the receivers that are being read from at this moment, the one that has given most; none may be.
  absl::StatusOr<std::optional<int>> FindFeeder();

 private:
  const RequestContext context_;
  BenchCluster* const cluster_;
  const int first_receiver_;
  const std::string artifact_id_;
};

}  // namespace tensorcast::bench
