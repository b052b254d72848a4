// External programs that serve as references: UCX's ucx_perftest, iperf3 and fio, run as child processes.
// NOT_FOUND when one is not installed: the figure then has no reference. Thread-compatible; call from the
// main thread (children end with the thread that started them).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/request_context.h"

namespace tensorcast::bench {

// Searches the folders of $PATH. NOT_FOUND, with the package to install, if none has it.
absl::StatusOr<std::string> FindProgram(std::string_view name, std::string_view debian_package);

struct PerftestOptions {
  std::string test;  // "ucp_get", "ucp_am_bw"
  std::vector<std::string> arguments;
  std::string tls;  // UCX_TLS of both processes
  uint64_t message_bytes = 0;
  int iterations = 0;
  int warmup = 0;
};
// Runs the two processes of one test; returns the average bandwidth in GB/s (10^9 bytes).
absl::StatusOr<double> RunPerftest(const RequestContext& context, const PerftestOptions& options);

// Parses the output with -f -v: the last line's overall bandwidth, which is in MiB/s.
absl::StatusOr<double> ParsePerftest(std::string_view output);

// Runs one TCP stream over loopback with iperf3, for a second; returns the receiver's count in GB/s (10^9
// bytes).
absl::StatusOr<double> RunIperf(const RequestContext& context);

// Parses the output with --json.
absl::StatusOr<double> ParseIperf(std::string_view output);

// One way for fio to read a file sequentially with O_DIRECT.
struct FioEngine {
  std::string name;
  std::string block = "4m";
  int depth = 1;
};
std::vector<FioEngine> FioEngines();
std::string Describe(const FioEngine& engine);
// Reads the first `bytes` of `file` sequentially; returns GB/s (10^9 bytes).
absl::StatusOr<double> RunFio(const RequestContext& context, const FioEngine& engine, const std::string& file,
                              uint64_t bytes);
// Parses the output with --output-format=json.
absl::StatusOr<double> ParseFio(std::string_view output);

}  // namespace tensorcast::bench
