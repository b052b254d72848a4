// The command line: shows the commands, parses the user's input, and runs the chosen command. Not
// thread-safe: `main` calls these functions.
#pragma once

#include <string>
#include <vector>

#include "cli/commands/command.h"

namespace tensorcast::cli {

// The name of the program that has the command in `argv` (Command::program); empty: this program.
std::string OtherProgram(const std::vector<Command>& commands, int argc, const char* const* argv);

inline constexpr char kAbout[] = "TensorCast: store model weights once and bring them to every node";

// Runs the command in `argv` with the configured telemetry. Returns the command's exit code, or 2 for an
// invalid command line. Messages use the program's name argv[0]; `about` is the first line of --help.
// REQUIRES: OtherProgram() is empty, or the line asks for help.
int ParseAndRun(const std::vector<Command>& commands, int argc, const char* const* argv,
                const char* about = kAbout);

// An option or a positional argument, as --help shows it.
struct FlagDescription {
  std::vector<std::string> names;    // "-h", "--help"; for an argument, its only name
  std::string value;                 // the kind of its value: "TEXT", "PATH", "DURATION"; empty: none
  std::vector<std::string> choices;  // the accepted values; empty: not a fixed list
  std::string default_value;         // the default that --help shows; empty: none
  std::string help;
  bool required = false;
  bool common = false;  // every command has it
};

// A command as --help shows it. Hidden commands are left out.
struct CommandDescription {
  std::string name;
  std::string help;
  std::vector<FlagDescription> options;
  std::vector<FlagDescription> arguments;    // in order
  std::vector<CommandDescription> commands;  // of a group
};

// Describes the program with all these commands.
CommandDescription Describe(const std::vector<Command>& commands);

}  // namespace tensorcast::cli
