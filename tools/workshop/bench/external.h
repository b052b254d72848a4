// Programs of others that serve as references: UCX's ucx_perftest, iperf3 and fio. They are run as child
// processes where they are installed. NOT_FOUND when one is not: the figure then has no reference.
// Thread-compatible; call from the main thread (children die with the thread that started them).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/request_context.h"

namespace tensorcast::bench {

// In the folders of $PATH. NOT_FOUND, with what to install, when it is in none.
absl::StatusOr<std::string> FindProgram(std::string_view name, std::string_view debian_package);

struct PerftestOptions {
  std::string test;  // "ucp_get", "ucp_am_bw"
  std::vector<std::string> arguments;
  std::string tls;  // UCX_TLS of both processes
  uint64_t message_bytes = 0;
  int iterations = 0;
  int warmup = 0;
};
// Runs the two processes of one test; the average bandwidth in GB/s (10^9 bytes).
absl::StatusOr<double> RunPerftest(const RequestContext& context, const PerftestOptions& options);

// From its output with -f -v: the last line's overall bandwidth, which it gives in MiB/s.
absl::StatusOr<double> ParsePerftest(std::string_view output);

// One TCP stream over loopback by iperf3, for a second; what the receiver counted in GB/s (10^9 bytes).
absl::StatusOr<double> RunIperf(const RequestContext& context);

// From its output with --json.
absl::StatusOr<double> ParseIperf(std::string_view output);

// One way for fio to read a file front to back with O_DIRECT.
struct FioEngine {
  std::string name;
  std::string block = "4m";
  int depth = 1;
};
std::vector<FioEngine> FioEngines();
std::string Describe(const FioEngine& engine);
// Sequential read of the first `bytes` of `file`; GB/s (10^9 bytes).
absl::StatusOr<double> RunFio(const RequestContext& context, const FioEngine& engine, const std::string& file,
                              uint64_t bytes);
// From --output-format=json.
absl::StatusOr<double> ParseFio(std::string_view output);

}  // namespace tensorcast::bench
