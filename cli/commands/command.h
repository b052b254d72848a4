// What a command is: a name, the flags that it takes, and what it does. Each command is a source of this
// folder; commands.h lists them all, command_line.cc puts them before people.
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

// What a flag's value must be, beyond its type. Another value ends the program with code 2 and an error.
struct FlagRules {
  bool required = false;
  bool show_default = false;  // in --help
  bool not_empty = false;     // of a text
  bool path = false;          // of a text: names a file or a folder, which shells complete
  bool size = false;          // of a text: what ParseSize reads, with a unit
  std::optional<double> min;  // of a duration: in seconds
  std::optional<double> max;
  std::vector<std::string> choices;
};

// Binds variables to the command line; they must live until the command has run. A name that begins with "--"
// is an option, any other an argument by its place, in the order of the calls. A bool is true when it is
// named, a vector is named once for each item.
class Flags {
 public:
  explicit Flags(CLI::App* command) : command_(command) {}

  // For bool, int, uint64_t, double, std::string, absl::Duration, std::vector<std::string>,
  // and std::optional of uint32_t, uint64_t and std::string. A duration has a unit on the command line
  // ("30s"); a bare number is refused.
  template <class T>
  void Add(const std::string& name, T& value, const std::string& help, const FlagRules& rules = {});

 private:
  CLI::App* const command_;
};

// Returns the process's exit code (termination.h has those of errors).
using Run = std::function<int(const CommonFlags& common)>;

enum class Role : uint8_t {
  kServer,  // runs until it is told to end; what it makes is for its own user
  kClient,  // talks to the daemon that --daemon or client.daemon names
  kLocal,   // brings along what it talks to
  kSilent,  // has no telemetry, or none but its own, and may be there to find what is wrong with the
            // configuration
};

struct Command {
  std::string name;
  std::string help;  // empty: of no use to people, and not shown
  Role role = Role::kClient;
  // Takes several operations, none of which is its own: a span of its own makes them one trace.
  bool spanned = false;
  // Of a server: what telemetry says about its process beside its role (otel::ResourceAttributes).
  std::vector<std::pair<std::string, std::string>> (*resource)(const CommonFlags& common) = nullptr;
  std::string config_section;  // --help shows its keys; empty: none
  std::function<Run(Flags& flags)>
      bind;                       // binds its flags; what that returns runs when the command was chosen
  std::vector<Command> commands;  // of a group, of which one has to be named; it has nothing else but a name
  // Another program that has this command, which is listed by its name and help alone (OtherProgram); empty:
  // this one.
  std::string program;
};

// The `bind` of a command with flags in a struct. `run` returns an absl::Status, which gives
// the exit code, or the exit code itself.
template <class Values, class Result>
std::function<Run(Flags&)> Bind(void (*add)(Flags& flags, Values& values),
                                Result (*run)(const CommonFlags& common, const Values& values)) {
  return [add, run](Flags& flags) -> Run {
    auto values = std::make_shared<Values>();
    add(flags, *values);
    return [run, values](const CommonFlags& common) { return ExitCode(run(common, *values)); };
  };
}
// The `bind` of a command that has only the flags of every command.
template <class Result>
std::function<Run(Flags&)> Bind(Result (*run)(const CommonFlags& common)) {
  return [run](Flags&) { return [run](const CommonFlags& common) { return ExitCode(run(common)); }; };
}

}  // namespace tensorcast::cli
