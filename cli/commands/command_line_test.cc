// What a command can count on from the command line, tried with commands made up for it.
#include "cli/commands/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "cli/commands/commands.h"
#include "cli/commands/run_for_test.h"

namespace tensorcast::cli::command_line_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct Values {
  std::string place;
  std::string name = "unset";
  bool loud = false;
  int count = 1;
  double share = 0.5;
  absl::Duration pause = absl::Minutes(1);
  std::string weight = "1KiB";
  std::optional<uint64_t> revision;
  std::vector<std::string> lanes;
};

void AddFlags(Flags& flags, Values& values) {
  flags.Add("place", values.place, "Where", {.required = true});
  flags.Add("--name", values.name, "Guest", {.show_default = true, .not_empty = true});
  flags.Add("--loud", values.loud, "Shouts");
  flags.Add("--count", values.count, "How often", {.min = 1});
  flags.Add("--share", values.share, "Of all", {.min = 0, .max = 1});
  flags.Add("--pause", values.pause, "How long", {.show_default = true, .min = 0.5, .max = 7200});
  flags.Add("--weight", values.weight, "How heavy", {.show_default = true, .size = true});
  flags.Add("--revision", values.revision, "Which");
  flags.Add("--lane", values.lanes, "Ways", {.choices = {"land", "sea"}});
}

Values seen;         // by the last run
CommonFlags common;  // likewise
int code = 0;        // of the next

int Keep(const CommonFlags& flags, const Values& values) {
  seen = values;
  common = flags;
  return code;
}

std::vector<Command> Greetings() {
  return {
      {.name = "greet", .help = "Says good day", .role = Role::kSilent, .bind = Bind(AddFlags, Keep)},
      {.name = "daemon", .help = "Asks a daemon", .config_section = "daemon", .bind = Bind(AddFlags, Keep)},
      {.name = "list",
       .help = "Lists something",
       .commands = {{.name = "all", .help = "All", .role = Role::kSilent, .bind = Bind(AddFlags, Keep)},
                    {.name = "hidden", .role = Role::kSilent, .bind = Bind(AddFlags, Keep)}}}};
}

class CommandLineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    seen = {};
    code = 0;
  }
  static RunResult Run(const std::vector<std::string>& words) { return RunForTest(Greetings(), words); }
};

TEST_F(CommandLineTest, Flags_SetTheirValuesAndOthersKeepDefaults) {
  const RunResult result =
      Run({"greet", "here", "--name", "you", "--loud", "--count", "3", "--share=0.25", "--pause", "1m30s",
           "--weight", "2MiB", "--revision", "0", "--lane", "sea", "--lane", "land"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(seen.place, "here");
  EXPECT_EQ(seen.name, "you");
  EXPECT_TRUE(seen.loud);
  EXPECT_EQ(seen.count, 3);
  EXPECT_EQ(seen.share, 0.25);
  EXPECT_EQ(seen.pause, absl::Seconds(90));
  EXPECT_EQ(seen.weight, "2MiB");
  EXPECT_EQ(seen.revision, 0u);
  EXPECT_THAT(seen.lanes, ElementsAre("sea", "land"));

  EXPECT_EQ(Run({"greet", "here"}).code, 0);
  EXPECT_EQ(seen.name, "unset") << "a value of the previous command line";
  EXPECT_FALSE(seen.loud);
  EXPECT_EQ(seen.pause, absl::Minutes(1));
  EXPECT_EQ(seen.revision, std::nullopt);
  EXPECT_THAT(seen.lanes, IsEmpty());
}

TEST_F(CommandLineTest, CommonFlags_ReachTheCommand) {
  EXPECT_EQ(Run({"greet", "here", "--json", "--set", "a.b=1", "--set", "c.d=2"}).code, 0);
  EXPECT_TRUE(common.json);
  EXPECT_THAT(common.sets, ElementsAre("a.b=1", "c.d=2"));
}

TEST_F(CommandLineTest, ExitCodeOfCommand_IsReturned) {
  code = 7;
  EXPECT_EQ(Run({"list", "all", "here"}).code, 7);
}

TEST_F(CommandLineTest, InvalidFlagValue_ExitsWithTwoAndNamesFlag) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"--count", "0"}, "--count: 0 is not a number of at least 1"},
      {{"--count", "many"}, "--count"},
      {{"--share", "2"}, "--share: 2 is not a number from 0 to 1"},
      {{"--share", "nan"}, "--share"},
      {{"--name", ""}, "--name: the value is empty"},
      {{"--pause", "30"}, "--pause: 30 has no unit: write 30s for seconds, 30m for minutes"},
      {{"--pause", "0"}, "--pause: 0 has no unit"},
      {{"--pause", "soon"}, "\"soon\" is not a duration"},
      {{"--pause", "100ms"}, "--pause: 100ms is not a duration from 500ms to 2h"},
      {{"--weight", "4096"}, "--weight: 4096 has no unit: write 4096MiB or 4096GiB, or 4096B for bytes"},
      {{"--weight", "heavy"}, "--weight: \"heavy\" is not a size"},
      {{"--pause", "3h"}, "--pause: 3h is not a duration from 500ms to 2h"},
      {{"--revision", "-1"}, "--revision: -1 is not a whole number of at least 0"},
      {{"--lane", "air"}, "--lane"},
      {{"--loudly"}, "--loudly"},
      {{"--config", "/no/such/file"}, "--config"},
  };
  for (const auto& [flags, said] : wrong) {
    std::vector<std::string> words = {"greet", "here"};
    words.insert(words.end(), flags.begin(), flags.end());
    const RunResult result = Run(words);
    EXPECT_EQ(result.code, 2) << flags[0];
    EXPECT_THAT(result.err, HasSubstr(said));
    EXPECT_THAT(result.out, IsEmpty());
    EXPECT_EQ(seen.place, "") << "it ran";
  }
}

TEST_F(CommandLineTest, MissingArgumentOrCommand_ExitsWithTwo) {
  EXPECT_THAT(Run({"greet"}).err, HasSubstr("place is required"));
  EXPECT_EQ(Run({"greet"}).code, 2);
  EXPECT_EQ(Run({}).code, 2);
  EXPECT_EQ(Run({"list"}).code, 2);
}

TEST_F(CommandLineTest, UnknownCommand_IsNamedWithWhereToLook) {
  EXPECT_EQ(Run({"shout"}).code, 2);
  EXPECT_THAT(Run({"shout"}).err,
              HasSubstr("\"shout\" is not a command of tensorcast; see tensorcast --help"));
  EXPECT_THAT(Run({"list", "some"}).err,
              HasSubstr("\"some\" is not a command of tensorcast list; see tensorcast list --help"));
}

TEST_F(CommandLineTest, Help_ExitsWithZeroAndShowsCommandsAndFlags) {
  const RunResult group = Run({"list", "--help"});
  EXPECT_EQ(group.code, 0);
  EXPECT_THAT(group.out, HasSubstr("all"));
  EXPECT_THAT(group.out, Not(HasSubstr("hidden")));
  const RunResult greet = Run({"greet", "--help"});
  // The library's newer versions write " [unset]".
  EXPECT_THAT(greet.out, ::testing::ContainsRegex("--name TEXT(=| \\[)unset"));
  EXPECT_THAT(greet.out, ::testing::ContainsRegex("--pause DURATION(=| \\[)1m"));
  EXPECT_THAT(greet.out, Not(HasSubstr("--daemon"))) << "it talks to none";
  EXPECT_THAT(Run({"daemon", "--help"}).out, HasSubstr("--daemon"));
}

TEST_F(CommandLineTest, HelpOfServer_ShowsKeysOfItsSection) {
  const RunResult help = Run({"daemon", "--help"});
  EXPECT_THAT(help.out, HasSubstr("--set daemon.key=value"));
  EXPECT_THAT(help.out, HasSubstr("[a size, such as 64GiB]\nhost_pool: 4GiB\n"));
  EXPECT_THAT(help.out, Not(HasSubstr("heartbeat_interval"))) << "of another section";
}

TEST_F(CommandLineTest, WrongConfiguration_StopsCommandBeforeItRuns) {
  const RunResult result = Run({"daemon", "here", "--set", "daemon.hots_pool=1GiB"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("did you mean \"host_pool\"?"));
  EXPECT_EQ(seen.place, "") << "it ran";
}

TEST_F(CommandLineTest, CommandOfAnotherProgram_IsListedAndNamesItsProgram) {
  std::vector<Command> commands = Greetings();
  commands.push_back({.name = "wave", .help = "Waves from afar", .program = "waver"});
  EXPECT_THAT(RunForTest(commands, {"--help"}).out, HasSubstr("Waves from afar"));
  const auto other = [&commands](std::vector<const char*> argv) {
    argv.insert(argv.begin(), "tensorcast");
    return OtherProgram(commands, static_cast<int>(argv.size()), argv.data());
  };
  EXPECT_EQ(other({"wave"}), "waver");
  EXPECT_EQ(other({"wave", "--help"}), "waver");
  EXPECT_EQ(other({"--help", "wave"}), "waver");
  EXPECT_EQ(other({"greet", "wave"}), "");
  EXPECT_EQ(other({"shout"}), "");
  EXPECT_EQ(other({"--help"}), "");
  EXPECT_EQ(other({}), "");
}

TEST_F(CommandLineTest, HelpAndErrors_CallTheProgramAsTheLineDoes) {
  const auto words = [](const char* program, const char* word) {
    const char* const argv[] = {program, word};
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    ParseAndRun(Greetings(), 2, argv, "Greets");
    return ::testing::internal::GetCapturedStdout() + ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(words("/opt/bin/greeter", "--help"), AllOf(HasSubstr("Greets"), HasSubstr("Usage: greeter ")));
  EXPECT_THAT(words("greeter", "shout"), HasSubstr("is not a command of greeter; see greeter --help"));
}

TEST(Describe, Command_HasArgumentsAndOptionsOfItsHelp) {
  const CommandDescription program = Describe(Greetings());
  ASSERT_EQ(program.commands.size(), 3u);
  const CommandDescription& greet = program.commands[0];
  EXPECT_EQ(greet.name, "greet");
  ASSERT_EQ(greet.arguments.size(), 1u);
  EXPECT_THAT(greet.arguments[0].names, ElementsAre("place"));
  EXPECT_TRUE(greet.arguments[0].required);
  const auto option = [&](const std::string& name) {
    const auto found = std::ranges::find_if(
        greet.options, [&](const FlagDescription& one) { return one.names.back() == name; });
    return found == greet.options.end() ? FlagDescription() : *found;
  };
  EXPECT_EQ(option("--pause").value, "DURATION");
  EXPECT_EQ(option("--pause").default_value, "1m");
  EXPECT_EQ(option("--loud").value, "");
  EXPECT_THAT(option("--lane").choices, ElementsAre("land", "sea"));
  EXPECT_EQ(option("--lane").value, "TEXT");
  EXPECT_EQ(option("--config").value, "PATH");
  EXPECT_TRUE(option("--config").common);
  EXPECT_FALSE(option("--lane").common);
  const CommandDescription& list = program.commands[2];
  ASSERT_EQ(list.commands.size(), 1u) << "one is hidden";
  EXPECT_EQ(list.commands[0].name, "all");
}

// Those of the program.
void ForEachCommand(const std::vector<Command>& commands, const std::function<void(const Command&)>& visit) {
  for (const Command& command : commands) {
    visit(command);
    ForEachCommand(command.commands, visit);
  }
}

TEST(Commands, EveryCommand_HasHelpAndDistinctName) {
  std::set<std::string> names;
  for (const Command& command : AllCommands()) EXPECT_TRUE(names.insert(command.name).second) << command.name;
  ForEachCommand(AllCommands(), [](const Command& command) {
    const bool runs_here = command.commands.empty() && command.program.empty();
    EXPECT_EQ(runs_here, command.bind != nullptr) << command.name;
    EXPECT_FALSE(command.help.ends_with('.')) << command.name;
  });
  for (const std::string& name : names) {
    const RunResult help = RunForTest(AllCommands(), {name, "--help"});
    EXPECT_EQ(help.code, 0) << name;
    EXPECT_THAT(help.out, HasSubstr("Usage: ")) << name;
  }
}

}  // namespace
}  // namespace tensorcast::cli::command_line_test
