// How the global store grows: one real server (directory, SQLite, gRPC over a unix socket) in this process,
// and simulated nodes that publish artifacts and report what they hold, as daemons would. After each part of
// the artifacts is in, the same calls are measured again, so that a table shows how they grow. Blocking; a
// run uses threads of its own. Time stands still for the server, so that no simulated node expires.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tensorcast::scale {

struct Options {
  std::string directory;  // must exist; the socket and the database go there
  int artifacts = 100'000;
  int nodes = 1'000;
  int steps = 4;        // measured after each `artifacts / steps`
  int callers = 16;     // threads that publish and reconcile
  int samples = 2'000;  // of each call that is timed alone
};

// Of one call, alone on an otherwise idle server.
struct Latency {
  double p50_us = 0;
  double p99_us = 0;
};

struct Step {
  uint64_t artifacts = 0;  // as the server counts them, each with a key
  uint64_t replicas = 0;   // two an artifact
  double publish_per_second = 0;
  Latency resolve;               // ResolveKey
  Latency grant;                 // RequestReplicaTransport, of which every one is granted, and its end
  Latency heartbeat;             // of a node
  double reconcile_us_each = 0;  // all nodes report their whole inventory at once: time a replica
  int64_t resident_bytes = 0;    // of this process, beyond what it had before the first artifact
};

// An error if any call fails, a grant is refused, or the server counts anything but what was put in.
absl::StatusOr<std::vector<Step>> RunFleet(const Options& options);

std::string Table(const std::vector<Step>& steps);

}  // namespace tensorcast::scale
