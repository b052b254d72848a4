// ResolveKey against a real global store by many callers at once, beside a call that does nothing on a server
// that is set up the same way.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "cli/bench/bench.h"
#include "cli/bench/bench_cluster.h"
#include "cli/bench/callers.h"

namespace tensorcast::bench {
namespace {

constexpr char kKey[] = "control";

absl::StatusOr<std::unique_ptr<Process>> StartEmptyServer(const BenchOptions& options,
                                                          const std::string& directory,
                                                          std::string* address) {
  ProcessOptions process;
  process.argv = {options.binary, "bench", "empty-server"};
  process.log_path = directory + "/empty-server-log";
  process.ready_pipe = true;
  TC_ASSIGN_OR_RETURN(auto server, Process::Start(process));
  TC_ASSIGN_OR_RETURN(*address, server->WaitReady(SteadyNow() + absl::Seconds(20)));
  return server;
}

}  // namespace

absl::StatusOr<Rows> RunControl(const BenchOptions& options) {
  const int runs = options.runs != 0 ? options.runs : options.smoke ? 1 : 7;
  const absl::Duration length = options.smoke ? absl::Milliseconds(200) : absl::Seconds(2);
  TC_ASSIGN_OR_RETURN(const auto cluster, BenchCluster::Start(options, {.pool_bytes = 64 * kMiB}));
  TC_RETURN_IF_ERROR(cluster->ImportModel(kKey, kMiB).status());
  std::string empty_address;
  TC_ASSIGN_OR_RETURN(const auto empty_server,
                      StartEmptyServer(options, cluster->directory(), &empty_address));

  Callers resolve(options.context, cluster->processes().global_store_address(), kKey);
  Callers empty(options.context, empty_address, kKey);
  // Not counted: these open the connections, and let threads and caches come up.
  TC_RETURN_IF_ERROR(resolve.Run(length / 4).status());
  TC_RETURN_IF_ERROR(empty.Run(length / 4).status());

  Say(absl::StrCat("control: ", runs, " pairs of ", absl::FormatDuration(length), ", ", kCallers,
                   " callers"));
  Pairs rate, p50, p99, p999;
  for (int run = 0; run < runs; ++run) {
    TC_ASSIGN_OR_RETURN(const CallWindow a, resolve.Run(length));
    TC_ASSIGN_OR_RETURN(const CallWindow b, empty.Run(length));
    rate.Add(a.calls_per_second, b.calls_per_second);
    p50.Add(Percentile(a.latencies_ms, 50), Percentile(b.latencies_ms, 50));
    p99.Add(Percentile(a.latencies_ms, 99), Percentile(b.latencies_ms, 99));
    p999.Add(Percentile(a.latencies_ms, 99.9), Percentile(b.latencies_ms, 99.9));
  }
  TC_RETURN_IF_ERROR(empty_server->Stop(absl::Seconds(10)).status());
  TC_RETURN_IF_ERROR(cluster->Stop());

  Rows rows;
  const auto add = [&](const std::string& metric, const std::string& unit, const Pairs& pairs) {
    Row row{.bench = "control", .lane = "ResolveKey", .metric = metric, .unit = unit};
    pairs.Fill(absl::StrCat("empty call, ", kCallers, " callers"), &row);
    rows.push_back(std::move(row));
  };
  add("rate", "ops/s", rate);
  add("p50", "ms", p50);
  add("p99", "ms", p99);
  add("p99.9", "ms", p999);
  return rows;
}

}  // namespace tensorcast::bench
