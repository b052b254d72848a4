// The scripts in the shells that read them, and the manual page in the formatter that shows it.
#include "cli/commands/completion_scripts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/testing/temp_folder.h"
#include "cli/commands/commands.h"
#include "cli/commands/man_page.h"

namespace tensorcast::cli::completion_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

using Words = std::vector<std::string>;

class Completion : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  // What a shell prints, on stdout and stderr, for this script; `code` is its exit code.
  std::string RunShell(const std::string& command, int* code = nullptr) {
    std::FILE* const pipe = popen(absl::StrCat(command, " 2>&1").c_str(), "r");
    if (pipe == nullptr) return "no shell";
    std::string output;
    char buffer[4096];
    while (const size_t size = std::fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, size);
    const int status = pclose(pipe);
    if (code != nullptr) *code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return output;
  }
  bool Has(const std::string& program) {
    int code = 0;
    RunShell("command -v " + program, &code);
    return code == 0;
  }
  // What bash offers for the last of these words. compopt works only under a key; it says "<paths>" here.
  Words Offered(const Words& words, const CommandDescription& program = Describe(AllCommands())) {
    std::string driver =
        absl::StrCat("compopt() { echo '<paths>'; }\n", BashCompletion(program), "COMP_WORDS=(");
    for (const std::string& word : words) absl::StrAppend(&driver, " '", word, "'");
    absl::StrAppend(&driver, ")\nCOMP_CWORD=", words.size() - 1, "\n_tensorcast\n",
                    "for reply in \"${COMPREPLY[@]}\"; do echo \"$reply\"; done\n");
    return absl::StrSplit(RunShell("bash --norc " + Write("driver.bash", driver)), '\n', absl::SkipEmpty());
  }

  testing::TempFolder folder_;
};

TEST_F(Completion, NothingTyped_OffersEveryCommandAndNoHiddenOne) {
  const Words offered = Offered({"tensorcast", ""});
  Words named;
  for (const Command& command : AllCommands()) {
    if (!command.help.empty()) named.push_back(command.name);
  }
  EXPECT_THAT(offered, ::testing::UnorderedElementsAreArray(named));
  EXPECT_THAT(offered, Not(Contains("keeper")));
}

TEST_F(Completion, BeginOfAWord_OffersWhatBeginsSo) {
  EXPECT_THAT(Offered({"tensorcast", "repl"}), UnorderedElementsAre("replicate", "replica", "replication"));
  EXPECT_THAT(Offered({"tensorcast", "node", ""}), UnorderedElementsAre("ls", "drain", "undrain", "forget"));
  EXPECT_THAT(Offered({"tensorcast", "key", "re"}), ElementsAre("resolve"));
}

TEST_F(Completion, EveryCommand_OffersItsOptions) {
  const CommandDescription program = Describe(AllCommands());
  int commands = 0;
  const std::function<void(const CommandDescription&, const Words&)> check =
      [&](const CommandDescription& command, const Words& words) {
        Words options;
        for (const FlagDescription& option : command.options) {
          options.insert(options.end(), option.names.begin(), option.names.end());
        }
        Words typed = words;
        typed.emplace_back("-");
        EXPECT_THAT(Offered(typed, program), ::testing::UnorderedElementsAreArray(options))
            << absl::StrJoin(words, " ");
        ++commands;
        for (const CommandDescription& one : command.commands) {
          Words deeper = words;
          deeper.push_back(one.name);
          check(one, deeper);
        }
      };
  check(program, {"tensorcast"});
  EXPECT_GT(commands, 30);
}

TEST_F(Completion, OptionsOfACommand_IncludeItsOwnAndThoseOfAll) {
  EXPECT_THAT(Offered({"tensorcast", "get", "m", "--"}),
              IsSupersetOf({"--device", "--timeout", "--daemon", "--json", "--help"}));
  EXPECT_THAT(Offered({"tensorcast", "get", "m", "--dev"}), ElementsAre("--device"));
}

TEST_F(Completion, ValueOfAnOption_IsOneOfItsChoices) {
  EXPECT_THAT(Offered({"tensorcast", "config", "check", "--role", ""}),
              ElementsAre("daemon", "global-store", "all"));
  EXPECT_THAT(Offered({"tensorcast", "config", "check", "--role", "=", "g"}), ElementsAre("global-store"));
  EXPECT_THAT(Offered({"tensorcast", "config", "check", "--role", "="}),
              ElementsAre("daemon", "global-store", "all"));
  EXPECT_THAT(Offered({"tensorcast", "metadata", "copy", ""}), ElementsAre("sqlite", "etcd"));
}

TEST_F(Completion, PathArgument_CompletesPathsOnly) {
  EXPECT_THAT(Offered({"tensorcast", "put", ""}), ElementsAre("<paths>"));
  EXPECT_THAT(Offered({"tensorcast", "get", "m", "--out", ""}), ElementsAre("<paths>"));
  EXPECT_THAT(Offered({"tensorcast", "get", "--config", "/e"}), ElementsAre("<paths>"));
  EXPECT_THAT(Offered({"tensorcast", "get", ""}), IsEmpty());
  EXPECT_THAT(Offered({"tensorcast", "get", "m", "--timeout", ""}), IsEmpty());
  EXPECT_THAT(Offered({"tensorcast", "put", "--"}), Not(Contains("<paths>")));
}

TEST_F(Completion, ZshAndFish_ReadTheirScripts) {
  const CommandDescription program = Describe(AllCommands());
  const std::string zsh = ZshCompletion(program);
  const std::string fish = FishCompletion(program);
  EXPECT_THAT(zsh, AllOf(::testing::StartsWith("#compdef tensorcast\n"), HasSubstr("'/node')"),
                         HasSubstr("'undrain:End the drain of a node'"), HasSubstr("'*--role=[")));
  EXPECT_THAT(fish, AllOf(HasSubstr("__tensorcast_at \"/node\"' -a undrain"), HasSubstr(" -l role ")));
  int code = 0;
  if (Has("zsh")) {
    EXPECT_EQ(RunShell("zsh -n " + Write("_tensorcast", zsh), &code), "");
    EXPECT_EQ(code, 0);
  }
  if (!Has("fish")) GTEST_SKIP() << "no fish, or no zsh, to read them";
  const std::string path = Write("tensorcast.fish", fish);
  EXPECT_THAT(RunShell(absl::StrCat("fish -c 'source ", path, "; complete -C \"tensorcast node u\"'"), &code),
              HasSubstr("undrain"));
  EXPECT_EQ(code, 0);
}

TEST_F(Completion, ManualPage_NamesEveryCommandAndIsWellFormed) {
  const CommandDescription program = Describe(AllCommands());
  const std::string page = ManPage(program);
  EXPECT_THAT(
      page, AllOf(HasSubstr("\\fBtensorcast node drain\\fR \\fINODE\\fR"),
                  HasSubstr("\\fB\\-\\-timeout\\fR \\fIDURATION\\fR"), Not(HasSubstr("tensorcast keeper"))));
  for (const CommandDescription& command : program.commands) {
    EXPECT_THAT(
        page, HasSubstr(absl::StrCat("\\fBtensorcast ", absl::StrReplaceAll(command.name, {{"-", "\\-"}}))));
  }
  if (!Has("groff")) GTEST_SKIP() << "no groff to read it";
  EXPECT_EQ(RunShell("groff -man -ww -W break -z -Tutf8 " + Write("tensorcast.1", page)), "");
}

}  // namespace
}  // namespace tensorcast::cli::completion_test
