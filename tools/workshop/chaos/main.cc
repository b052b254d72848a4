// chaos --seed N --faults M [--daemons D] [--global-stores G] [--budget 90s] [--program FILE]: see README.md.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <random>
#include <string>

#include "absl/strings/numbers.h"
#include "tools/workshop/chaos/chaos.h"
#include "tools/workshop/chaos/schedule.h"

namespace {

constexpr char kUsage[] =
    "usage: chaos [--seed N] [--faults M] [--daemons D, four at least] [--global-stores G] [--budget 90s]\n"
    "             [--liars N] [--program FILE]\n"
    "Starts a cluster, kills and stops its processes at random, and checks what must hold.\n"
    "Without a seed one is drawn and printed. Exit code 0: every invariant held.\n";

bool Set(tensorcast::chaos::ChaosOptions& options, const std::string& flag, const std::string& value) {
  if (flag == "--seed") return absl::SimpleAtoi(value, &options.seed);
  if (flag == "--faults") return absl::SimpleAtoi(value, &options.faults) && options.faults > 0;
  if (flag == "--daemons") {
    return absl::SimpleAtoi(value, &options.daemons) && options.daemons >= tensorcast::chaos::kMinDaemons;
  }
  if (flag == "--global-stores") {
    return absl::SimpleAtoi(value, &options.global_stores) && options.global_stores > 0;
  }
  if (flag == "--liars") return absl::SimpleAtoi(value, &options.liars) && options.liars >= 0;
  if (flag == "--program") return !(options.binary = value).empty();
  if (flag == "--budget") return absl::ParseDuration(value, &options.budget);
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  tensorcast::chaos::ChaosOptions options;
  options.seed = std::random_device()();
  const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  options.binary = here / "tensorcast";
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 < argc && Set(options, argv[i], argv[i + 1])) continue;
    std::fputs(kUsage, stderr);
    return 2;
  }
  options.victim_binary = here / "chaos_victim";
  return tensorcast::chaos::RunChaos(options).ok() ? 0 : 1;
}
