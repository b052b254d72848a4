#include <cstdio>

#include "base/status.h"
#include "base/units.h"
#include "cli/bench/bench.h"
#include "cli/cluster/process.h"
#include "cli/commands/command.h"
#include "transport/lanes/lanes.h"

namespace tensorcast::cli {
namespace {

struct BenchFlags {
  std::string bytes;  // of the artifact, as for --size; empty: the benchmark's own
  int runs = 0;       // 0: the benchmark's own
  std::vector<std::string> lanes;
  bool tls = false;
  bool smoke = false;
};

absl::StatusOr<bench::BenchOptions> ToOptions(const CommonFlags& common, const BenchFlags& flags) {
  bench::BenchOptions options{.runs = flags.runs,
                              .lanes = flags.lanes,
                              .sets = common.sets,
                              .tls = flags.tls,
                              .smoke = flags.smoke,
                              .context = InterruptibleContext()};
  TC_ASSIGN_OR_RETURN(options.binary, OwnBinary());
  if (!flags.bytes.empty()) {
    TC_ASSIGN_OR_RETURN(options.bytes, ParseSize(flags.bytes));
    if (options.bytes == 0) return absl::InvalidArgumentError("--bytes must be more than nothing");
  }
  return options;
}

using Benchmark = absl::StatusOr<bench::Rows> (*)(const bench::BenchOptions&);

absl::Status Measure(const CommonFlags& common, const BenchFlags& flags, Benchmark benchmark) {
  TC_ASSIGN_OR_RETURN(const bench::BenchOptions options, ToOptions(common, flags));
  TC_ASSIGN_OR_RETURN(const bench::Rows rows, benchmark(options));
  std::fputs((common.json ? bench::ToJson(rows) : bench::ToTable(rows)).c_str(), stdout);
  return absl::OkStatus();
}

// Flags that some have. `lanes` are those that --lane can name, `lanes_help` says which are measured without
// it; `tls_help` says what --tls measures. Empty: there is no such flag.
struct MoreFlags {
  std::vector<std::string> lanes;
  const char* lanes_help = "";
  const char* tls_help = "";
};

Command BenchmarkCommand(const char* name, const char* help, Benchmark benchmark,
                         const MoreFlags& more = {}) {
  return {.name = name, .help = help, .role = Role::kLocal, .bind = [benchmark, more](Flags& flags) -> Run {
            auto values = std::make_shared<BenchFlags>();
            flags.Add("--runs", values->runs, "Pairs of measurement and reference (memory: transfers)",
                      {.least = 1});
            flags.Add("--bytes", values->bytes, "Of the artifact, such as 1GiB");
            flags.Add("--smoke", values->smoke, "Tiny and short: proves that it runs, measures nothing");
            if (!more.lanes.empty()) {
              flags.Add("--lane", values->lanes, more.lanes_help, {.choices = more.lanes});
            }
            if (*more.tls_help != '\0') flags.Add("--tls", values->tls, more.tls_help);
            return [benchmark, values](const CommonFlags& common) {
              return ExitCode(Measure(common, *values, benchmark));
            };
          }};
}

// Of no use to people: what a benchmark starts as a process of its own.
Command ServerCommand(const char* name, absl::Status (*serve)(int ready_fd)) {
  return {.name = name, .role = Role::kLocal, .bind = [serve](Flags& flags) -> Run {
            auto ready_fd = std::make_shared<int>(-1);
            flags.Add("--ready-fd", *ready_fd, "", {.required = true});
            return [serve, ready_fd](const CommonFlags&) { return ExitCode(serve(*ready_fd)); };
          }};
}

}  // namespace

Command BenchCommand() {
  std::vector<std::string> observed = transport::LaneNames();
  observed.push_back("ResolveKey");
  return {
      .name = "bench",
      .help = "Measure a cluster on this machine beside what the machine can do",
      .commands = {
          BenchmarkCommand("p2p",
                           "Host to host between two daemons, verified, beside a plain copy and iperf3",
                           bench::RunP2p,
                           {.lanes = transport::LaneNames(),
                            .lanes_help = "Repeatable; local and tcp by default, tcp with --tls",
                            .tls_help = "Of nodes with certificates, beside the same in clear"}),
          BenchmarkCommand("attach", "A client maps a ready replica: a large one beside one of 1 MiB",
                           bench::RunAttach),
          BenchmarkCommand("control", "ResolveKey by 64 callers, beside a call that does nothing",
                           bench::RunControl,
                           {.tls_help = "By a caller with a certificate, beside the same in clear"}),
          BenchmarkCommand("load", "A file to a ready replica, cold and warm, beside fio", bench::RunLoad),
          BenchmarkCommand("memory", "Resident memory of a daemon beyond its pools, idle and after transfers",
                           bench::RunMemory),
          BenchmarkCommand(
              "telemetry", "Transfers and calls with everything observed, beside the same with telemetry off",
              bench::RunTelemetry,
              {.lanes = observed, .lanes_help = "Repeatable; local, tcp and ResolveKey by default"}),
          ServerCommand("empty-server", bench::ServeEmptyCalls),
          ServerCommand("collector", bench::ServeCollector)}};
}

}  // namespace tensorcast::cli
