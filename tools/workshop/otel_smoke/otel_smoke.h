// `tensorcast otel-smoke`: runs a cluster of real processes with telemetry on, a put, a P2P get to a GPU and
// a disk get, and proves that all telemetry arrives at a collector and is consistent.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/request_context.h"

namespace tensorcast::otel_smoke {

struct Options {
  std::string binary;    // the tensorcast executable
  std::string endpoint;  // an external collector; empty: a receiver in this process, which checks the data
  std::string exporter;  // observability.otel.exporter for all processes; empty: the one that fits the
                         // endpoint
  uint64_t model_bytes = uint64_t{48} << 20;
  bool json = false;
};

// Prints what arrived to stdout. FAILED_PRECONDITION, with everything that is missing, when it is incomplete.
absl::Status Run(const RequestContext& context, const Options& options);

}  // namespace tensorcast::otel_smoke
