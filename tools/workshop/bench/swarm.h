// The state of a running fan-out, by its daemons' reports: which chunks receivers have, and which receivers
// feed others. Private to tools/workshop/bench.
//
// Borrows the cluster. Thread-compatible. Errors: those of the calls, since every daemon has to answer.
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

  // The share of the image's chunks that at least one receiver has; 1: all of them.
  absl::StatusOr<double> ShareHeld();
  // Of the receivers that others read from now, the one that has given the most bytes; nullopt: none.
  absl::StatusOr<std::optional<int>> FindFeeder();

 private:
  const RequestContext context_;
  BenchCluster* const cluster_;
  const int first_receiver_;
  const std::string artifact_id_;
};

}  // namespace tensorcast::bench
