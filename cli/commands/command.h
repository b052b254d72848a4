// Declares a command: its name, its flags, and its function. Each command is a source of this folder;
// commands.h lists them all, and command_line.cc shows and runs them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "cli/commands/common_flags.h"
#include "cli/commands/termination.h"

namespace CLI {
class App;
}

namespace tensorcast::cli {

// The rules for a flag's value, beyond its type. A value that breaks a rule ends the program with code 2 and
// an error.
struct FlagRules {
  bool required = false;
  bool show_default = false;  // show the default value in --help
  bool not_empty = false;     // for a text
  bool path = false;          // for a text: a path, which shells complete
  bool size = false;          // for a text: a size with a unit (ParseSize)
  std::optional<double> min;  // for a duration: in seconds
  std::optional<double> max;
  std::vector<std::string> choices;
};

// Binds variables to the command line. The variables must live until the command has run. A name that begins
// with "--" is an option. Any other name is a positional argument, in the order of the calls of Add. A bool
// is true if its option is given. The option of a vector is given once for each item.
class Flags {
 public:
  explicit Flags(CLI::App* command) : command_(command) {}

  // For bool, int, uint64_t, double, std::string, absl::Duration, std::vector<std::string>, and std::optional
  // of uint32_t, uint64_t and std::string. A duration must have a unit on the command line ("30s").
  template <class T>
  void Add(const std::string& name, T& value, const std::string& help, const FlagRules& rules = {});

 private:
  CLI::App* const command_;
};

// Runs a command. Returns the process's exit code (termination.h has the codes of errors).
using Run = std::function<int(const CommonFlags& common)>;

enum class Role : uint8_t {
  kServer,  // runs until a signal ends it; only its own user may read the files that it makes
  kClient,  // talks to the daemon that --daemon or client.daemon names
  kLocal,   // starts the processes that it talks to
  kSilent,  // has no common telemetry, so it also runs with an invalid configuration
};

struct Command {
  std::string name;
  std::string help;  // empty: a command for programs, not shown in --help
  Role role = Role::kClient;
  // True: the command makes several operations, and a span of the command joins them in one trace.
  bool spanned = false;
  // For a server: further attributes of its process (otel::ResourceAttributes).
  std::vector<std::pair<std::string, std::string>> (*resource)(const CommonFlags& common) = nullptr;
  std::string config_section;  // --help shows its keys; empty: none
  // Binds the flags. The returned function runs when the user has chosen the command.
  std::function<Run(Flags& flags)> bind;
  // Not empty: a group of commands, such as `key`. A group has only a name, a help and these commands.
  std::vector<Command> commands;
  // Empty: this program has the command. Otherwise the name of the other program that has the command
  // (OtherProgram); for such a command, only name and help are set here.
  std::string program;
};

// The `bind` of a command with its flags in a struct. `run` returns the exit code, or an absl::Status that
// gives the exit code.
template <class Values, class Result>
std::function<Run(Flags&)> Bind(void (*add)(Flags& flags, Values& values),
                                Result (*run)(const CommonFlags& common, const Values& values)) {
  return [add, run](Flags& flags) -> Run {
    auto values = std::make_shared<Values>();
    add(flags, *values);
    return [run, values](const CommonFlags& common) { return ExitCode(run(common, *values)); };
  };
}
// The `bind` of a command that only has the common flags.
template <class Result>
std::function<Run(Flags&)> Bind(Result (*run)(const CommonFlags& common)) {
  return [run](Flags&) { return [run](const CommonFlags& common) { return ExitCode(run(common)); }; };
}

}  // namespace tensorcast::cli
