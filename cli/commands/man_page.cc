#include "cli/commands/man_page.h"

#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace tensorcast::cli {
namespace {

// Text of a line: a backslash and a hyphen are characters, and a first "." or "'" does not start a macro.
std::string Roff(std::string_view text) {
  std::string escaped = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}, {"\n", " "}});
  if (escaped.starts_with('.') || escaped.starts_with('\'')) escaped.insert(0, "\\&");
  return escaped;
}

std::string Bold(std::string_view text) { return absl::StrCat("\\fB", Roff(text), "\\fR"); }
std::string Italic(std::string_view text) { return absl::StrCat("\\fI", Roff(text), "\\fR"); }

// "--device TEXT (default: cpu)"
std::string FlagHead(const FlagDescription& flag) {
  std::string head = absl::StrJoin(
      flag.names, ", ", [](std::string* out, const std::string& name) { absl::StrAppend(out, Bold(name)); });
  if (!flag.choices.empty()) {
    absl::StrAppend(&head, " ", Roff(absl::StrJoin(flag.choices, "|")));
  } else if (!flag.value.empty()) {
    absl::StrAppend(&head, " ", Italic(flag.value));
  }
  if (!flag.default_value.empty()) absl::StrAppend(&head, " (default: ", Roff(flag.default_value), ")");
  return head;
}

std::string FlagText(const FlagDescription& flag) {
  return absl::StrCat(".TP\n", FlagHead(flag), "\n", Roff(flag.help), "\n");
}

std::string ArgumentText(const FlagDescription& argument) {
  const std::string choices =
      argument.choices.empty() ? "" : absl::StrCat(" (", Roff(absl::StrJoin(argument.choices, "|")), ")");
  return absl::StrCat(".TP\n", Italic(absl::AsciiStrToUpper(argument.names[0])), choices, "\n",
                      Roff(argument.help), "\n");
}

// "tensorcast key bind KEY ARTIFACT [OPTIONS]"
std::string Usage(const CommandDescription& command, std::string_view words) {
  std::string usage = Bold(words);
  for (const FlagDescription& argument : command.arguments) {
    const std::string name = Italic(absl::AsciiStrToUpper(argument.names[0]));
    absl::StrAppend(&usage, " ", argument.required ? name : absl::StrCat("[", name, "]"));
  }
  return absl::StrCat(usage, " [", Italic("OPTIONS"), "]");
}

// An entry for each command that runs. A group has none: its name is in the words of its commands. The
// options of every command stand once, at the end of the page.
void AddCommand(const CommandDescription& command, const std::string& words, std::string& page) {
  for (const CommandDescription& one : command.commands) {
    AddCommand(one, absl::StrCat(words, " ", one.name), page);
  }
  if (!command.commands.empty()) return;
  absl::StrAppend(&page, ".SS ", Usage(command, words), "\n", Roff(command.help), ".\n");
  for (const FlagDescription& argument : command.arguments) absl::StrAppend(&page, ArgumentText(argument));
  for (const FlagDescription& option : command.options) {
    if (!option.common && option.names.back() != "--help") absl::StrAppend(&page, FlagText(option));
  }
}

// The command from which the options of every command are taken; the one with the most of them.
void FindCommon(const CommandDescription& command, std::vector<FlagDescription>& common) {
  std::vector<FlagDescription> found;
  for (const FlagDescription& option : command.options) {
    if (option.common) found.push_back(option);
  }
  if (found.size() > common.size()) common = found;
  for (const CommandDescription& one : command.commands) FindCommon(one, common);
}

}  // namespace

std::string ManPage(const CommandDescription& program) {
  // Without a date, so that equal sources make an equal page.
  std::string page = absl::StrCat(
      ".TH TENSORCAST 1 \"\" \"TensorCast ", TENSORCAST_VERSION, "\" \"User Commands\"\n",
      ".SH NAME\ntensorcast \\- store model weights once and bring them to every node\n",
      ".SH SYNOPSIS\n.B tensorcast\n", Italic("COMMAND"), " [", Italic("ARGUMENTS"), "] [", Italic("OPTIONS"),
      "]\n", ".SH DESCRIPTION\n", Roff(program.help), ".\n",
      "The program has the two servers, daemon and global\\-store, and the commands that call them.\n",
      "Results go to stdout, everything else to stderr.\n", ".SH COMMANDS\n");
  for (const CommandDescription& one : program.commands) {
    AddCommand(one, absl::StrCat("tensorcast ", one.name), page);
  }
  absl::StrAppend(&page, ".SH OPTIONS OF EVERY COMMAND\n");
  std::vector<FlagDescription> common;
  FindCommon(program, common);
  for (const FlagDescription& option : common) absl::StrAppend(&page, FlagText(option));
  absl::StrAppend(&page, ".TP\n", Bold("-h"), ", ", Bold("--help"), "\nPrint the help of the command\n",
                  ".SH EXIT STATUS\n.TP\n0\nsuccess\n.TP\n1\nan error\n.TP\n2\n",
                  "an invalid command line\n.TP\n130\ninterrupted by a signal\n", ".SH ENVIRONMENT\n.TP\n",
                  Bold("TENSORCAST_DAEMON"),
                  "\nThe daemon to talk to, if neither an option nor the configuration names a daemon\n");
  return page;
}

}  // namespace tensorcast::cli
