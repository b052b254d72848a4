// What the commands of tensorcast-bench refuse and print without a cluster. tests/e2e runs them as processes.
#include "tools/workshop/commands/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/testing/temp_folder.h"
#include "cli/commands/commands.h"
#include "cli/commands/programs.h"
#include "cli/commands/run_for_test.h"

namespace tensorcast::workshop {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Words = std::vector<std::string>;

cli::RunResult RunBench(const Words& words) { return cli::RunForTest(AllCommands(), words); }

// Before a process is started: an error and an exit code, and nothing on stdout.
TEST(WorkshopCommands, BenchThatCannotMeasure_IsRefused) {
  const auto refused = [](const Words& words, int code, const std::string& said) {
    const cli::RunResult result = RunBench(words);
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(said));
    EXPECT_THAT(result.out, IsEmpty());
  };
  refused({"bench"}, 2, "subcommand");
  refused({"bench", "everything"}, 2, "\"everything\" is not a command of tensorcast bench");
  refused({"bench", "p2p", "--bytes", "0B"}, 1, "--bytes must be more than nothing");
  refused({"bench", "p2p", "--bytes", "4096"}, 2, "--bytes: 4096 has no unit");
  refused({"bench", "p2p", "--bytes", "large"}, 2, "\"large\" is not a size");
  refused({"bench", "p2p", "--lane", "carrier-pigeon"}, 2, "ucx");
  refused({"bench", "attach", "--lane", "ucx"}, 2, "--lane");
  EXPECT_THAT(RunBench({"bench", "p2p", "--help"}).out, HasSubstr("local and tcp by default"));
  refused({"bench", "load", "--runs", "0"}, 2, "--runs: 0 is not a number of at least 1");
}

TEST(WorkshopCommands, OtelSmokeWithoutHostAndPort_NamesTheKey) {
  const cli::RunResult result = RunBench({"otel-smoke", "--endpoint", "nowhere"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("observability.otel.endpoint: \"nowhere\" is not http://host:port"));
  EXPECT_THAT(result.out, IsEmpty());
}

TEST(WorkshopCommands, MakeModel_PrintsItsPathAndRefusesNonsense) {
  const tensorcast::testing::TempFolder folder;
  const std::string path = folder.File("made.safetensors");
  EXPECT_EQ(RunBench({"make-model", path, "--size", "1MiB"}).out, "wrote " + path + "\n");
  const cli::RunResult size = RunBench({"make-model", path, "--size", "large"});
  EXPECT_EQ(size.code, 2);
  EXPECT_THAT(size.err, HasSubstr("\"large\" is not a size"));
  EXPECT_EQ(RunBench({"make-model", path, "--shards", "0"}).code, 2);
}

// `tensorcast NAME` is `tensorcast-bench NAME`: with the same name and help, and with all its options.
TEST(WorkshopCommands, EachOne_IsListedByTheProductToo) {
  const std::vector<cli::Command> listed = cli::AllCommands();
  for (const cli::Command& command : AllCommands()) {
    const auto found =
        std::ranges::find_if(listed, [&](const cli::Command& one) { return one.name == command.name; });
    ASSERT_NE(found, listed.end()) << command.name;
    EXPECT_EQ(found->help, command.help);
    EXPECT_EQ(found->program, cli::kWorkshop);
    EXPECT_THAT(RunBench({command.name, "--help"}).out, HasSubstr("Usage: tensorcast " + command.name));
  }
}

}  // namespace
}  // namespace tensorcast::workshop
