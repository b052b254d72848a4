#include <cstdio>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/units.h"
#include "cli/commands/command.h"
#include "cli/commands/programs.h"
#include "cli/commands/workshop_commands.h"
#include "tools/workshop/bench/bench.h"
#include "tools/workshop/bench/control_fleet.h"
#include "tools/workshop/bench/followers.h"
#include "tools/workshop/cluster/process.h"
#include "tools/workshop/commands/commands.h"
#include "transport/lanes/lanes.h"

namespace tensorcast::workshop {
namespace {

using cli::Bind;
using cli::Command;
using cli::CommonFlags;
using cli::ExitCode;
using cli::Flags;
using cli::InterruptibleContext;
using cli::Role;
using cli::Run;

struct BenchFlags {
  std::string bytes;  // of the artifact, as for --size; empty: the benchmark's own
  int runs = 0;       // 0: the benchmark's own
  std::vector<std::string> lanes;
  bool tls = false;
  double sampling_ratio = 1;
  bool recorder = false;
  bool smoke = false;
};

absl::StatusOr<bench::BenchOptions> ToOptions(const CommonFlags& common, const BenchFlags& flags) {
  bench::BenchOptions options{.runs = flags.runs,
                              .lanes = flags.lanes,
                              .sets = common.sets,
                              .tls = flags.tls,
                              .sampling_ratio = flags.sampling_ratio,
                              .recorder = flags.recorder,
                              .smoke = flags.smoke,
                              .context = InterruptibleContext()};
  if (!flags.bytes.empty()) {
    TC_ASSIGN_OR_RETURN(options.bytes, ParseSize(flags.bytes));
    if (options.bytes == 0) return absl::InvalidArgumentError("--bytes must be more than nothing");
  }
  TC_ASSIGN_OR_RETURN(options.binary, cli::FindProgram(cli::kTensorcast));
  TC_ASSIGN_OR_RETURN(options.own_binary, OwnBinary());
  return options;
}

// What a fan-out takes beside the others' flags.
struct FanOutFlags {
  BenchFlags common;
  bench::FanOutOptions fan_out;  // what needs no parsing
  std::string rate = "400Mbit";
  std::string arrivals = "0";
  std::string slow;   // "1@40Mbit"; empty: none
  std::string fault;  // "kill-source@0.5"; empty: none
};

// "400Mbit", "10gbit/s": its prefixes are those of sizes in thousands.
absl::StatusOr<uint64_t> ParseBitRate(std::string_view text) {
  std::string_view prefixed = text;
  (void)absl::ConsumeSuffix(&prefixed, "/s");
  if (absl::ConsumeSuffix(&prefixed, "bit")) {
    const absl::StatusOr<uint64_t> rate = ParseSize(absl::StrCat(prefixed, "B"));
    if (rate.ok() && *rate > 0) return rate;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not a rate; write a number and bit, kbit, Mbit or Gbit: 400Mbit"));
}

// "kill-source@1": what is done, to which node, and when.
absl::StatusOr<bench::FanOutFault> ParseFault(std::string_view text) {
  using Victim = bench::FanOutFault::Victim;
  bench::FanOutFault fault;
  std::string_view rest = text;
  fault.kill = absl::ConsumePrefix(&rest, "kill-");
  const bool is_fault = fault.kill || absl::ConsumePrefix(&rest, "stop-");
  fault.victim = absl::ConsumePrefix(&rest, "source@") ? Victim::kSource : Victim::kReceiver;
  const bool has_victim = fault.victim == Victim::kSource || absl::ConsumePrefix(&rest, "receiver@");
  if (is_fault && has_victim && absl::SimpleAtod(rest, &fault.share_held) && fault.share_held > 0 &&
      fault.share_held <= 1) {
    return fault;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--fault takes kill or stop, source or receiver, and the share of the image, up to 1, that the "
      "receivers have together then, such as kill-source@1 or stop-receiver@0.5, not \"",
      text, "\""));
}

absl::StatusOr<bench::FanOutOptions> ToFanOutOptions(const FanOutFlags& flags) {
  bench::FanOutOptions options = flags.fan_out;
  TC_ASSIGN_OR_RETURN(options.bits_per_second, ParseBitRate(flags.rate));
  TC_ASSIGN_OR_RETURN(options.arrivals, ParseDuration(flags.arrivals));
  if (!flags.fault.empty()) {
    TC_ASSIGN_OR_RETURN(options.fault, ParseFault(flags.fault));
  }
  if (flags.slow.empty()) return options;
  const std::vector<std::string> parts = absl::StrSplit(flags.slow, absl::MaxSplits('@', 1));
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &options.slow) || options.slow < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--slow takes how many hosts, @ and their rate, such as 1@40Mbit, not \"", flags.slow, "\""));
  }
  TC_ASSIGN_OR_RETURN(options.slow_bits_per_second, ParseBitRate(parts[1]));
  return options;
}

using Benchmark = absl::StatusOr<bench::Rows> (*)(const bench::BenchOptions&);

void Print(const CommonFlags& common, const bench::Rows& rows) {
  std::fputs((common.json ? bench::ToJson(rows) : bench::ToTable(rows)).c_str(), stdout);
}

absl::Status Measure(const CommonFlags& common, const BenchFlags& flags, Benchmark benchmark) {
  TC_ASSIGN_OR_RETURN(const bench::BenchOptions options, ToOptions(common, flags));
  TC_ASSIGN_OR_RETURN(const bench::Rows rows, benchmark(options));
  Print(common, rows);
  return absl::OkStatus();
}

absl::Status MeasureFanOut(const CommonFlags& common, const FanOutFlags& flags) {
  TC_ASSIGN_OR_RETURN(const bench::BenchOptions options, ToOptions(common, flags.common));
  TC_ASSIGN_OR_RETURN(const bench::FanOutOptions fan_out, ToFanOutOptions(flags));
  TC_ASSIGN_OR_RETURN(const bench::Rows rows, bench::RunFanOut(options, fan_out));
  Print(common, rows);
  return absl::OkStatus();
}

struct ControlFlags {
  BenchFlags common;
  bench::FleetBenchOptions fleet{.nodes = 0};  // 0: no fleet
};

absl::Status MeasureControl(const CommonFlags& common, const ControlFlags& flags) {
  if (flags.fleet.nodes == 0) return Measure(common, flags.common, bench::RunControl);
  TC_ASSIGN_OR_RETURN(const bench::BenchOptions options, ToOptions(common, flags.common));
  TC_ASSIGN_OR_RETURN(const bench::Rows rows, bench::RunControlFleet(options, flags.fleet));
  Print(common, rows);
  return absl::OkStatus();
}

struct FollowersFlags {
  BenchFlags common;
  bench::FollowersOptions followers;
  std::string interval = "10s";
};

absl::Status MeasureFollowers(const CommonFlags& common, const FollowersFlags& flags) {
  TC_ASSIGN_OR_RETURN(const bench::BenchOptions options, ToOptions(common, flags.common));
  bench::FollowersOptions followers = flags.followers;
  TC_ASSIGN_OR_RETURN(followers.interval, ParseDuration(flags.interval));
  TC_ASSIGN_OR_RETURN(const bench::Rows rows, bench::RunFollowers(options, followers));
  Print(common, rows);
  return absl::OkStatus();
}

struct ExplainFlags {
  BenchFlags common;
  int seed = 1;
  std::vector<std::string> bottlenecks;
};

absl::Status MeasureExplain(const CommonFlags& common, const ExplainFlags& flags) {
  TC_ASSIGN_OR_RETURN(const bench::BenchOptions options, ToOptions(common, flags.common));
  TC_ASSIGN_OR_RETURN(const bench::Rows rows,
                      bench::RunExplain(options, {.seed = static_cast<uint64_t>(flags.seed),
                                                  .bottlenecks = flags.bottlenecks}));
  Print(common, rows);
  return absl::OkStatus();
}

struct VersionsFlags {
  BenchFlags common;
  bench::VersionsOptions versions;
};

absl::Status MeasureVersions(const CommonFlags& common, const VersionsFlags& flags) {
  TC_ASSIGN_OR_RETURN(const bench::BenchOptions options, ToOptions(common, flags.common));
  TC_ASSIGN_OR_RETURN(const bench::Rows rows, bench::RunVersions(options, flags.versions));
  Print(common, rows);
  return absl::OkStatus();
}

// The NCCL of the daemons and of the reference.
struct GpuFlags {
  BenchFlags common;
  std::string nccl;
};

absl::Status MeasureGpu(const CommonFlags& common, const GpuFlags& flags) {
  TC_ASSIGN_OR_RETURN(const bench::BenchOptions options, ToOptions(common, flags.common));
  TC_ASSIGN_OR_RETURN(const bench::Rows rows, bench::RunGpu(options, flags.nccl));
  Print(common, rows);
  return absl::OkStatus();
}

constexpr char kRunsHelp[] = "Number of runs; each run measures the benchmark once and its reference once";

// Flags that some have. `lanes` are those that --lane can name, `lanes_help` says which are measured without
// it; `tls_help` says what --tls measures, `ratio_help` what --sampling-ratio does. Empty: there is no such
// flag.
struct MoreFlags {
  std::vector<std::string> lanes;
  const char* lanes_help = "";
  const char* tls_help = "";
  const char* ratio_help = "";
  const char* runs_help = kRunsHelp;
};

void AddFlagsOfAll(Flags& flags, BenchFlags& values, const char* runs_help = kRunsHelp) {
  flags.Add("--runs", values.runs, runs_help, {.min = 1});
  flags.Add("--bytes", values.bytes, "Size of the artifact, such as 1GiB", {.size = true});
  flags.Add("--smoke", values.smoke, "Run a tiny, short version, which only proves that the benchmark works");
}

void AddControlFlags(Flags& flags, ControlFlags& values) {
  AddFlagsOfAll(flags, values.common);
  flags.Add(
      "--tls", values.common.tls,
      "Use mutual TLS: compare callers with certificates and callers without TLS; with --nodes, give each "
      "node a certificate");
  flags.Add(
      "--nodes", values.fleet.nodes,
      "Instead of ResolveKey calls, simulate this number of nodes: kill their global store, and measure the "
      "time until all nodes are registered again and the CPU time of the store",
      {.min = 1});
  flags.Add("--replicas", values.fleet.replicas, "Replicas of each simulated node",
            {.show_default = true, .min = 1});
  flags.Add("--burners", values.fleet.burners,
            "Keep every core busy while the simulated nodes register again");
  flags.Add("--hold", values.fleet.hold,
            "With --nodes: measure nothing, print the store's address and run until an interrupt");
}

void AddFollowersFlags(Flags& flags, FollowersFlags& values) {
  AddFlagsOfAll(flags, values.common);
  flags.Add("--followers", values.followers.followers, "Simulated nodes that follow the key",
            {.show_default = true, .min = 1});
  flags.Add("--interval", values.interval, "Time between two versions", {.show_default = true});
}

void AddExplainFlags(Flags& flags, ExplainFlags& values) {
  AddFlagsOfAll(flags, values.common);
  flags.Add("--seed", values.seed, "Seed of the bottlenecks' kinds and strengths",
            {.show_default = true, .min = 0});
  flags.Add("--bottleneck", values.bottlenecks,
            "Make only these bottlenecks, all at once; may be given several times",
            {.choices = bench::BottleneckNames()});
}

void AddVersionsFlags(Flags& flags, VersionsFlags& values) {
  AddFlagsOfAll(flags, values.common);
  flags.Add("--only", values.versions.only, "Measure only this part; default: all parts",
            {.choices = {"put", "fold", "link", "update"}});
  flags.Add("--changed", values.versions.changed_percent, "Percent of the elements that change in a step",
            {.show_default = true, .min = 0, .max = 100});
}

void AddGpuFlags(Flags& flags, GpuFlags& values) {
  AddFlagsOfAll(flags, values.common);
  flags.Add("--nccl", values.nccl, "Path of NCCL's library; default: the system's library");
}

Command BenchmarkCommand(const char* name, const char* help, Benchmark benchmark,
                         const MoreFlags& more = {}) {
  return {.name = name, .help = help, .role = Role::kLocal, .bind = [benchmark, more](Flags& flags) -> Run {
            auto values = std::make_shared<BenchFlags>();
            AddFlagsOfAll(flags, *values, more.runs_help);
            if (!more.lanes.empty()) {
              flags.Add("--lane", values->lanes, more.lanes_help, {.choices = more.lanes});
            }
            if (*more.tls_help != '\0') flags.Add("--tls", values->tls, more.tls_help);
            if (*more.ratio_help != '\0') {
              flags.Add("--sampling-ratio", values->sampling_ratio, more.ratio_help,
                        {.show_default = true, .min = 0, .max = 1});
              flags.Add("--recorder", values->recorder,
                        "Measure with only the flight recorder on, and compare with the flight recorder off");
            }
            return [benchmark, values](const CommonFlags& common) {
              return ExitCode(Measure(common, *values, benchmark));
            };
          }};
}

void AddFanOutFlags(Flags& flags, FanOutFlags& values) {
  AddFlagsOfAll(flags, values.common);
  bench::FanOutOptions& fan_out = values.fan_out;
  flags.Add("--nodes", fan_out.nodes, "Number of daemons", {.show_default = true, .min = 2});
  flags.Add("--sources", fan_out.sources, "Number of daemons that have the model; the other daemons get it",
            {.show_default = true, .min = 1});
  flags.Add("--per-host", fan_out.per_host, "Number of daemons that share a host and its link",
            {.show_default = true, .min = 1});
  flags.Add("--artifacts", fan_out.artifacts, "Number of models, which every receiver gets at the same time",
            {.show_default = true, .min = 1});
  flags.Add("--fault", values.fault,
            "Fault as ACTION-NODE@SHARE, such as stop-receiver@0.5. ACTION: kill or stop. NODE: source, or "
            "receiver (one that sends to others). SHARE: the share of the chunks, 0 to 1, that have reached "
            "a receiver when the fault begins");
  flags.Add("--rate", values.rate, "Rate of each host's link in each direction", {.show_default = true});
  flags.Add("--arrivals", values.arrivals, "Time between the starts of two receivers, such as 0.5s");
  flags.Add("--slow", values.slow, "Number of hosts with another link rate, and that rate, such as 1@40Mbit");
  flags.Add("--tls", values.common.tls, "Use mutual TLS between the nodes");
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
      .name = cli::kBench.name,
      .help = cli::kBench.help,
      .commands = {
          BenchmarkCommand(
              "p2p",
              "Measure verified transfers between two daemons, and compare with a plain copy and iperf3",
              bench::RunP2p,
              {.lanes = transport::LaneNames(),
               .lanes_help =
                   "Lane to measure; may be given several times; local and tcp by default, tcp with --tls",
               .tls_help = "Measure nodes with certificates, and compare with nodes without TLS"}),
          BenchmarkCommand(
              "attach",
              "Measure how long a client takes to map a large replica, and compare with a replica of 1 MiB",
              bench::RunAttach),
          {.name = "control",
           .help = "Measure ResolveKey calls of 64 callers, and compare with a call that does nothing; with "
                   "--nodes, measure a fleet of simulated nodes instead",
           .role = Role::kLocal,
           .bind = Bind(AddControlFlags, MeasureControl)},
          BenchmarkCommand(
              "load", "Measure a load from a file to a ready replica, cold and warm, and compare with fio",
              bench::RunLoad),
          {.name = "fan-out",
           .help = "Measure how long one model takes from one node to many, each behind its own link, and "
                   "compare with a plain copy (needs root)",
           .role = Role::kLocal,
           .bind = Bind(AddFanOutFlags, MeasureFanOut)},
          {.name = "followers",
           .help = "Measure the calls and the global store's CPU time for each version, with simulated nodes "
                   "that follow a key",
           .role = Role::kLocal,
           .bind = Bind(AddFollowersFlags, MeasureFollowers)},
          {.name = "explain",
           .help =
               "Make bottlenecks on purpose, and check that `tensorcast explain` names each of them and its "
               "share of the time (needs root)",
           .role = Role::kLocal,
           .bind = Bind(AddExplainFlags, MeasureExplain)},
          {.name = "versions",
           .help = "Measure updates to a new version: puts with a base, gets by difference, a fleet that "
                   "follows a key (needs root)",
           .role = Role::kLocal,
           .bind = Bind(AddVersionsFlags, MeasureVersions)},
          {.name = "gpu",
           .help = "Measure copies to and between this machine's GPUs, and compare with plain copies and "
                   "NCCL alone",
           .role = Role::kLocal,
           .bind = Bind(AddGpuFlags, MeasureGpu)},
          BenchmarkCommand("put",
                           "Measure the first put and later puts of arrays, and compare with a plain copy",
                           bench::RunPut),
          BenchmarkCommand("memory",
                           "Measure a daemon's resident memory beyond its pools, idle and after transfers",
                           bench::RunMemory, {.runs_help = "Number of runs; each run is one transfer"}),
          BenchmarkCommand(
              "telemetry",
              "Measure transfers and calls with full telemetry, and compare with transfers and calls without "
              "telemetry",
              bench::RunTelemetry,
              {.lanes = observed,
               .lanes_help =
                   "What to measure; may be given several times; local, tcp and ResolveKey by default",
               .ratio_help = "Share of traces to record"}),
          ServerCommand("empty-server", bench::ServeEmptyCalls),
          ServerCommand("collector", bench::ServeCollector)}};
}

}  // namespace tensorcast::workshop
