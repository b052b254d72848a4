#include "cli/commands/completion_scripts.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace tensorcast::cli {
namespace {

// Commands are named by their path: "" is the program, "/key/bind" a command.
void ForEachCommand(const CommandDescription& command, const std::string& path,
                    const std::function<void(const CommandDescription&, const std::string&)>& visit) {
  visit(command, path);
  for (const CommandDescription& one : command.commands) {
    ForEachCommand(one, absl::StrCat(path, "/", one.name), visit);
  }
}

// "/put|/get|/key|/key/bind": all but the program.
std::string AllPaths(const CommandDescription& program, std::string_view separator) {
  std::vector<std::string> paths;
  ForEachCommand(program, "", [&](const CommandDescription&, const std::string& path) {
    if (!path.empty()) paths.push_back(path);
  });
  return absl::StrJoin(paths, separator);
}

bool IsPath(const FlagDescription& flag) { return flag.value == "PATH"; }

bool TakesPath(const CommandDescription& command) { return std::ranges::any_of(command.arguments, IsPath); }

// What may stand where no option is begun: commands, or the values of arguments, each once.
std::vector<std::string> WordsOf(const CommandDescription& command) {
  std::vector<std::string> words;
  for (const CommandDescription& one : command.commands) words.push_back(one.name);
  for (const FlagDescription& argument : command.arguments) {
    for (const std::string& choice : argument.choices) {
      if (std::ranges::find(words, choice) == words.end()) words.push_back(choice);
    }
  }
  return words;
}

// Between single quotes of a POSIX shell.
std::string ShellQuoted(std::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// Between single quotes of fish.
std::string FishQuoted(std::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

std::string OneLine(std::string_view text) { return absl::StrReplaceAll(text, {{"\n", " "}}); }

constexpr std::string_view kBashHead =
    R"(# Completion of tensorcast for bash, printed by `tensorcast completion bash`.
_tensorcast() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at='' words='' options='' paths='' i
  # "--option=value" arrives as three words.
  if [[ $cur == '=' ]]; then
    cur=''
  elif [[ $prev == '=' ]]; then
    prev=${COMP_WORDS[COMP_CWORD-2]}
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case $at/${COMP_WORDS[i]} in
)";

std::string BashCommand(const CommandDescription& command, const std::string& path) {
  std::vector<std::string> options;
  for (const FlagDescription& option : command.options) {
    options.insert(options.end(), option.names.begin(), option.names.end());
  }
  return absl::StrCat("    ", ShellQuoted(path), ") words='", absl::StrJoin(WordsOf(command), " "),
                      "' options='", absl::StrJoin(options, " "), "'", TakesPath(command) ? " paths=yes" : "",
                      " ;;\n");
}

// Two commands may have options of one name with other values, so the pattern has the command as well. How
// the value of an option is completed: the words of the list, or paths, or nothing.
std::string BashValue(const FlagDescription& option, const std::string& path) {
  const auto pattern = [&path](std::string* out, const std::string& name) {
    absl::StrAppend(out, "'", path, " ", name, "'");
  };
  return absl::StrCat("    ", absl::StrJoin(option.names, "|", pattern), ") words='",
                      absl::StrJoin(option.choices, " "),
                      "' options='' paths=", IsPath(option) ? "yes" : "''", " ;;\n");
}

constexpr std::string_view kZshHead =
    R"(#compdef tensorcast
# Completion of tensorcast for zsh, printed by `tensorcast completion zsh`.
_tensorcast() {
  local at='' i
  local -a commands
  for ((i = 2; i < CURRENT; ++i)); do
    case $at/${words[i]} in
)";

// Text in the brackets of a specification of _arguments.
std::string ZshText(std::string_view text) {
  return absl::StrReplaceAll(OneLine(text), {{"\\", "\\\\"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

std::string ZshAction(const FlagDescription& flag) {
  if (!flag.choices.empty()) return absl::StrCat("(", absl::StrJoin(flag.choices, " "), ")");
  return IsPath(flag) ? "_files" : " ";
}

std::string ZshCommand(const CommandDescription& command, const std::string& path) {
  std::string text = absl::StrCat("    ", ShellQuoted(path), ")\n");
  if (!command.commands.empty()) {
    absl::StrAppend(&text, "      commands=(\n");
    for (const CommandDescription& one : command.commands) {
      absl::StrAppend(&text, "        ",
                      ShellQuoted(absl::StrCat(one.name, ":", absl::StrReplaceAll(one.help, {{":", "\\:"}}))),
                      "\n");
    }
    absl::StrAppend(&text, "      )\n");
  }
  absl::StrAppend(&text, "      specs=(\n");
  for (const FlagDescription& option : command.options) {
    for (const std::string& name : option.names) {
      const std::string value =
          option.value.empty() ? "" : absl::StrCat(":", option.value, ":", ZshAction(option));
      // "*" keeps an option on offer after its first use.
      absl::StrAppend(&text, "        ",
                      ShellQuoted(absl::StrCat("*", name, value.empty() ? "" : "=", "[", ZshText(option.help),
                                               "]", value)),
                      "\n");
    }
  }
  for (const FlagDescription& argument : command.arguments) {
    absl::StrAppend(&text, "        ",
                    ShellQuoted(absl::StrCat(argument.required ? ":" : "::", argument.names[0], ":",
                                             ZshAction(argument))),
                    "\n");
  }
  return absl::StrCat(text, "      )\n      ;;\n");
}

constexpr std::string_view kFishHead =
    R"(# Completion of tensorcast for fish, printed by `tensorcast completion fish`.
function __tensorcast_at
    set -l at ''
    for word in (commandline -opc)[2..-1]
        switch "$at/$word"
            case )";

std::string FishNames(const FlagDescription& option) {
  std::string names;
  for (const std::string& name : option.names) {
    const bool is_long = name.starts_with("--");
    absl::StrAppend(&names, is_long ? " -l " : " -s ", name.substr(is_long ? 2 : 1));
  }
  return names;
}

std::string FishCommand(const CommandDescription& command, const std::string& path) {
  const std::string begin =
      absl::StrCat("complete -c tensorcast -n ", FishQuoted(absl::StrCat("__tensorcast_at \"", path, "\"")));
  std::string text;
  for (const CommandDescription& one : command.commands) {
    absl::StrAppend(&text, begin, " -a ", one.name, " -d ", FishQuoted(OneLine(one.help)), "\n");
  }
  for (const FlagDescription& argument : command.arguments) {
    if (!argument.choices.empty()) {
      absl::StrAppend(&text, begin, " -a ", FishQuoted(absl::StrJoin(argument.choices, " ")), "\n");
    }
  }
  if (TakesPath(command)) absl::StrAppend(&text, begin, " -F\n");
  for (const FlagDescription& option : command.options) {
    absl::StrAppend(&text, begin, FishNames(option), " -d ", FishQuoted(OneLine(option.help)));
    if (!option.value.empty()) absl::StrAppend(&text, IsPath(option) ? " -r -F" : " -x");
    if (!option.choices.empty()) {
      absl::StrAppend(&text, " -a ", FishQuoted(absl::StrJoin(option.choices, " ")));
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace

// The function walks the words before the cursor as far as they name commands, which gives the path `at`. The
// first `case` chooses what may follow that command; the second one overrules it where the previous word is
// an option that takes a value.
std::string BashCompletion(const CommandDescription& program) {
  std::string script =
      absl::StrCat(kBashHead, "      ", AllPaths(program, "|"), ") at=$at/${COMP_WORDS[i]} ;;\n",
                   "      *) break ;;\n    esac\n  done\n  case $at in\n");
  ForEachCommand(program, "", [&](const CommandDescription& command, const std::string& path) {
    absl::StrAppend(&script, BashCommand(command, path));
  });
  absl::StrAppend(&script, "  esac\n  case \"$at $prev\" in\n");
  ForEachCommand(program, "", [&](const CommandDescription& command, const std::string& path) {
    for (const FlagDescription& option : command.options) {
      if (!option.value.empty()) absl::StrAppend(&script, BashValue(option, path));
    }
  });
  absl::StrAppend(&script, R"(  esac
  if [[ $cur == -* && -n $options ]]; then words=$options paths=''; fi
  COMPREPLY=()
  while IFS= read -r i; do COMPREPLY+=("$i"); done < <(compgen -W "$words" -- "$cur")
  if [[ -n $paths ]]; then compopt -o default 2>/dev/null; fi
}
complete -F _tensorcast tensorcast
)");
  return script;
}

// Walks to the command as the script of bash does, then leaves the rest to _arguments, which knows by itself
// when the value of an option is wanted.
std::string ZshCompletion(const CommandDescription& program) {
  std::string script =
      absl::StrCat(kZshHead, "      (", AllPaths(program, "|"), ") at=$at/${words[i]} ;;\n",
                   "      (*) break ;;\n    esac\n  done\n  local -a specs\n  case $at in\n");
  ForEachCommand(program, "", [&](const CommandDescription& command, const std::string& path) {
    absl::StrAppend(&script, ZshCommand(command, path));
  });
  absl::StrAppend(&script, R"(  esac
  # What is completed from here on is the command alone, without the words that lead to it.
  words=("${(@)words[i-1,-1]}")
  ((CURRENT -= i - 2))
  if (($#commands)) && [[ ${words[CURRENT]} != -* ]]; then
    _describe -t commands command commands
  else
    _arguments -s : $specs
  fi
}
if [[ $funcstack[1] == _tensorcast ]]; then
  _tensorcast "$@"
else
  compdef _tensorcast tensorcast
fi
)");
  return script;
}

// Fish has no script for a command line but rules: each is a condition, here the path of the command so far,
// and what then may follow.
std::string FishCompletion(const CommandDescription& program) {
  std::string script =
      absl::StrCat(kFishHead, AllPaths(program, " "), "\n                set at \"$at/$word\"\n",
                   "            case '*'\n                break\n        end\n    end\n",
                   "    test \"$at\" = \"$argv[1]\"\nend\ncomplete -c tensorcast -f\n");
  ForEachCommand(program, "", [&](const CommandDescription& command, const std::string& path) {
    absl::StrAppend(&script, FishCommand(command, path));
  });
  return script;
}

}  // namespace tensorcast::cli
