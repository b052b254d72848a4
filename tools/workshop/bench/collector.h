// A collector in a process of its own, to measure the cost of telemetry: it answers every export and keeps
// almost nothing, so that its own cost on this machine is small.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tools/workshop/cluster/process.h"

namespace tensorcast::bench {

// Spans, over all processes that sent to the collector, by their last reports.
struct CollectorTally {
  uint64_t exported = 0;
  uint64_t dropped = 0;
};

// Thread-compatible; see tools/workshop/cluster/process.h about threads.
class Collector {
 public:
  // `binary`: the program that has `bench collector`. Its log goes to `directory`.
  static absl::StatusOr<std::unique_ptr<Collector>> Start(const std::string& binary,
                                                          const std::string& directory);

  const std::string& endpoint() const { return endpoint_; }
  // From now on it hangs: the kernel accepts connections, and nothing answers.
  absl::Status Freeze();
  absl::StatusOr<CollectorTally> Stop();

 private:
  Collector(std::unique_ptr<Process> process, std::string endpoint)
      : process_(std::move(process)), endpoint_(std::move(endpoint)) {}

  const std::unique_ptr<Process> process_;
  const std::string endpoint_;
};

}  // namespace tensorcast::bench
