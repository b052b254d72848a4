#include <unistd.h>

#include <climits>
#include <cstdio>
#include <functional>
#include <map>

#include "base/status.h"
#include "base/units.h"
#include "cli/bench/bench.h"
#include "cli/commands/commands.h"

namespace tensorcast::cli {
namespace {

using BenchFunction = absl::StatusOr<bench::Rows> (*)(const bench::BenchOptions&);

absl::StatusOr<std::string> OwnBinary() {
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self));
  if (length <= 0) return ErrnoStatus(errno, "readlink", "/proc/self/exe");
  return std::string(self, length);
}

absl::StatusOr<bench::BenchOptions> ToOptions(const CommonFlags& common, const BenchFlags& flags) {
  bench::BenchOptions options{.runs = flags.runs,
                              .lanes = flags.lanes,
                              .sets = common.sets,
                              .smoke = flags.smoke,
                              .context = InterruptibleContext()};
  TC_ASSIGN_OR_RETURN(options.binary, OwnBinary());
  if (!flags.bytes.empty()) {
    TC_ASSIGN_OR_RETURN(options.bytes, ParseSize(flags.bytes));
    if (options.bytes == 0) return absl::InvalidArgumentError("--bytes must be more than nothing");
  }
  return options;
}

absl::Status Bench(const CommonFlags& common, const BenchFlags& flags) {
  static const std::map<std::string, BenchFunction> kBenches = {
      {"p2p", bench::RunP2p},   {"attach", bench::RunAttach}, {"control", bench::RunControl},
      {"load", bench::RunLoad}, {"memory", bench::RunMemory}, {"telemetry", bench::RunTelemetry}};
  TC_ASSIGN_OR_RETURN(const bench::BenchOptions options, ToOptions(common, flags));
  TC_ASSIGN_OR_RETURN(const bench::Rows rows, kBenches.at(flags.bench)(options));
  std::fputs((common.json ? bench::ToJson(rows) : bench::ToTable(rows)).c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

int RunBench(const CommonFlags& common, const BenchFlags& flags) { return ExitCode(Bench(common, flags)); }

int RunBenchEmptyServer(const ServerFlags& flags) { return ExitCode(bench::ServeEmptyCalls(flags.ready_fd)); }

int RunBenchCollector(const ServerFlags& flags) { return ExitCode(bench::ServeCollector(flags.ready_fd)); }

}  // namespace tensorcast::cli
