// ResolveKey at a real global store with many concurrent callers, beside a call that does nothing on a server
// with the same setup; with certificates, beside the same in clear.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "tools/workshop/bench/bench.h"
#include "tools/workshop/bench/bench_cluster.h"
#include "tools/workshop/bench/callers.h"

namespace tensorcast::bench {
namespace {

constexpr char kControlKey[] = "control";

absl::StatusOr<std::unique_ptr<Process>> StartEmptyServer(const BenchOptions& options,
                                                          const std::string& directory,
                                                          std::string* address) {
  ProcessOptions process;
  process.argv = {options.own_binary, "bench", "empty-server"};
  process.log_path = directory + "/empty-server-log";
  process.ready_pipe = true;
  TC_ASSIGN_OR_RETURN(auto server, Process::Start(process));
  TC_ASSIGN_OR_RETURN(*address, server->WaitReady(SteadyNow() + absl::Seconds(20)));
  return server;
}

absl::StatusOr<std::unique_ptr<BenchCluster>> StartCluster(const BenchOptions& options, bool tls) {
  TC_ASSIGN_OR_RETURN(auto cluster, BenchCluster::Start(options, {.pool_bytes = 64 * kMiB, .tls = tls}));
  TC_RETURN_IF_ERROR(cluster->ImportModel(kControlKey, kMiB).status());
  return cluster;
}

// Of `key` at the cluster's global store, as a client.
absl::StatusOr<std::unique_ptr<Callers>> CallersOf(const BenchOptions& options, BenchCluster& cluster) {
  std::shared_ptr<security::Identity> identity;
  if (cluster.tls()) {
    TC_ASSIGN_OR_RETURN(const security::Identity::Files files, cluster.Certify("client/bench"));
    TC_ASSIGN_OR_RETURN(identity, security::Identity::Load(files));
  }
  return std::make_unique<Callers>(options.context, cluster.processes().global_store_address(), kControlKey,
                                   std::move(identity));
}

absl::StatusOr<Rows> Measure(const BenchOptions& options, Callers& resolve, Callers& reference,
                             const std::string& reference_name) {
  const int runs = options.RunsOr(7);
  const absl::Duration length = options.smoke ? absl::Milliseconds(200) : absl::Seconds(2);
  // Not counted: these open the connections, and let threads and caches come up.
  TC_RETURN_IF_ERROR(resolve.Run(length / 4).status());
  TC_RETURN_IF_ERROR(reference.Run(length / 4).status());

  Say(absl::StrCat("control: ", runs, " pairs of ", absl::FormatDuration(length), ", ", kCallers,
                   " callers"));
  Pairs rate, p50, p99, p999;
  for (int run = 0; run < runs; ++run) {
    TC_ASSIGN_OR_RETURN(const CallWindow a, resolve.Run(length));
    TC_ASSIGN_OR_RETURN(const CallWindow b, reference.Run(length));
    rate.Add(a.calls_per_second, b.calls_per_second);
    p50.Add(Percentile(a.latencies_ms, 50), Percentile(b.latencies_ms, 50));
    p99.Add(Percentile(a.latencies_ms, 99), Percentile(b.latencies_ms, 99));
    p999.Add(Percentile(a.latencies_ms, 99.9), Percentile(b.latencies_ms, 99.9));
  }

  Rows rows;
  const auto add = [&](const std::string& metric, const std::string& unit, const Pairs& pairs) {
    Row row{.bench = "control", .lane = "ResolveKey", .metric = metric, .unit = unit};
    pairs.Fill(absl::StrCat(reference_name, ", ", kCallers, " callers"), &row);
    rows.push_back(std::move(row));
  };
  add("rate", "ops/s", rate);
  add("p50", "ms", p50);
  add("p99", "ms", p99);
  add("p99.9", "ms", p999);
  return rows;
}

// Before the servers are told to stop: an idle connection, which is not read from, would keep a server that
// ends waiting for all of its grace.
void HangUp(std::unique_ptr<Callers> one, std::unique_ptr<Callers> other) {
  one.reset();
  other.reset();
}

absl::StatusOr<Rows> RunBesideEmptyCalls(const BenchOptions& options) {
  TC_ASSIGN_OR_RETURN(const auto cluster, StartCluster(options, /*tls=*/false));
  std::string empty_address;
  TC_ASSIGN_OR_RETURN(const auto empty_server,
                      StartEmptyServer(options, cluster->directory(), &empty_address));
  TC_ASSIGN_OR_RETURN(auto resolve, CallersOf(options, *cluster));
  auto empty = std::make_unique<Callers>(options.context, empty_address, kControlKey);
  TC_ASSIGN_OR_RETURN(Rows rows, Measure(options, *resolve, *empty, "empty call"));
  HangUp(std::move(resolve), std::move(empty));
  TC_RETURN_IF_ERROR(empty_server->Stop(absl::Seconds(10)).status());
  TC_RETURN_IF_ERROR(cluster->Stop());
  return rows;
}

absl::StatusOr<Rows> RunBesideClear(const BenchOptions& options) {
  TC_ASSIGN_OR_RETURN(const auto secured, StartCluster(options, /*tls=*/true));
  TC_ASSIGN_OR_RETURN(const auto clear, StartCluster(options, /*tls=*/false));
  TC_ASSIGN_OR_RETURN(auto resolve, CallersOf(options, *secured));
  TC_ASSIGN_OR_RETURN(auto reference, CallersOf(options, *clear));
  TC_ASSIGN_OR_RETURN(Rows rows, Measure(options, *resolve, *reference, "the same in clear"));
  HangUp(std::move(resolve), std::move(reference));
  TC_RETURN_IF_ERROR(secured->Stop());
  TC_RETURN_IF_ERROR(clear->Stop());
  return rows;
}

}  // namespace

absl::StatusOr<Rows> RunControl(const BenchOptions& options) {
  return options.tls ? RunBesideClear(options) : RunBesideEmptyCalls(options);
}

}  // namespace tensorcast::bench
