// `tensorcast otel-smoke`: a cluster of real processes with telemetry on, a put, a P2P get to a GPU and a
// disk get, and the proof that all of it arrives at a collector as one coherent picture.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/request_context.h"

namespace tensorcast::otel_smoke {

struct Options {
  std::string binary;    // the tensorcast executable
  std::string endpoint;  // a collector of yours; empty: a receiver in this process, which checks the data
  std::string exporter;  // observability.otel.exporter, of all processes; empty: what fits the endpoint
  uint64_t model_bytes = uint64_t{48} << 20;
  bool json = false;
};

// Prints on stdout what arrived. FAILED_PRECONDITION, with everything that is missing, when the picture has
// holes.
absl::Status Run(const RequestContext& context, const Options& options);

}  // namespace tensorcast::otel_smoke
