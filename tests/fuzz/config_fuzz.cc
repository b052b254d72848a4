// The configuration file; behind a NUL byte, one key to set over it.
#include "absl/log/check.h"
#include "cli/config/config.h"
#include "tests/fuzz/fuzz_target.h"

namespace tensorcast::fuzz {

void TestOneInput(std::string_view input) {
  std::vector<std::string> sets;
  if (const size_t nul = input.find('\0'); nul != std::string_view::npos) {
    sets.emplace_back(input.substr(nul + 1));
    input = input.substr(0, nul);
  }
  const absl::StatusOr<v1::Config> config = config::Parse(input, "fuzz.yaml", sets);
  if (!config.ok()) {
    CHECK(absl::IsInvalidArgument(config.status())) << config.status();
    return;
  }
  const absl::StatusOr<v1::Config> again = config::Parse(config::ToYaml(*config), "again.yaml", {});
  CHECK_OK(again.status()) << config::ToYaml(*config);
  CHECK_EQ(config::ToYaml(*again), config::ToYaml(*config));
}

std::vector<std::string> Seeds() {
  using namespace std::string_literals;
  return {"",
          config::ToYaml(config::Defaults()),
          "daemon:\n  name: node-a\n  host_pool: 64GiB\n  lanes: [loopback]\n",
          "daemon: {name: 'a: b'}\n\0daemon.host_pool=2GiB"s,
          "a: &x [1, 2]\nb: *x\n",
          "daemon:\n  lanes: !!seq\n  - \"u\\x41\"\n--- more\n"};
}

}  // namespace tensorcast::fuzz
