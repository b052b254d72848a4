// Measures how the global store scales: one real server (directory, SQLite, gRPC over a unix socket) in this
// process, and simulated nodes that publish artifacts and report their replicas as daemons do. The same calls
// are measured after each part of the artifacts, so that a table shows how their cost grows. Blocking; a run
// uses threads of its own. The server's time stands still, so that no simulated node expires.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tensorcast::scale {

struct Options {
  std::string directory;  // must exist; the socket and the database are made in it
  int artifacts = 100'000;
  int nodes = 1'000;
  int steps = 4;        // number of measurements, each after `artifacts / steps`
  int callers = 16;     // threads that publish and reconcile
  int samples = 2'000;  // of each call that is timed by itself
};

// Of one call on an otherwise idle server.
struct Latency {
  double p50_us = 0;
  double p99_us = 0;
};

struct Step {
  uint64_t artifacts = 0;  // by the server's count, each with a key
  uint64_t replicas = 0;   // two per artifact
  double publish_per_second = 0;
  Latency resolve;               // ResolveKey
  Latency grant;                 // RequestReplicaTransport, always granted, and the grant's end
  Latency heartbeat;             // of a node
  double reconcile_us_each = 0;  // time per replica when all nodes report their whole inventory at once
  int64_t resident_bytes = 0;    // growth of this process since before the first artifact
};

// An error if any call fails, a grant is refused, or the server's counts are wrong.
absl::StatusOr<std::vector<Step>> RunFleet(const Options& options);

std::string Table(const std::vector<Step>& steps);

}  // namespace tensorcast::scale
