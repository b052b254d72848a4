// The command line as people write it: puts commands before them, reads what they wrote, and runs what they
// chose.
#pragma once

#include <string>
#include <vector>

#include "cli/commands/command.h"

namespace tensorcast::cli {

// The program that has the command of this line (Command::program); empty: this one.
std::string OtherProgram(const std::vector<Command>& commands, int argc, const char* const* argv);

inline constexpr char kAbout[] = "TensorCast: store model weights once and bring them to every node";

// Returns the exit code of the command, or 2 for a command line that makes no sense. Telemetry is up while
// the command runs, as the configuration says. Messages call the program as the line does (argv[0]); `about`
// is the first line of --help. REQUIRES: OtherProgram() is empty, or the line asks for help.
int ParseAndRun(const std::vector<Command>& commands, int argc, const char* const* argv,
                const char* about = kAbout);

// An option, or an argument by its place, as --help shows it.
struct FlagDescription {
  std::vector<std::string> names;    // "-h", "--help"; of an argument its one name
  std::string value;                 // what it takes: "TEXT", "PATH", "DURATION"; empty: it takes none
  std::vector<std::string> choices;  // the values that it accepts; none: not a fixed list
  std::string default_value;         // where --help shows one
  std::string help;
  bool required = false;
  bool common = false;  // of every command
};

// A command as --help shows it. Hidden commands are left out.
struct CommandDescription {
  std::string name;
  std::string help;
  std::vector<FlagDescription> options;
  std::vector<FlagDescription> arguments;    // in their order
  std::vector<CommandDescription> commands;  // of a group
};

// The program with all these commands.
CommandDescription Describe(const std::vector<Command>& commands);

}  // namespace tensorcast::cli
