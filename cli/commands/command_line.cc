#include "cli/commands/command_line.h"

#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <string>
#include <type_traits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/units.h"
#include "cli/commands/telemetry.h"
#include "cli/commands/termination.h"
#include "cli/config/config.h"
#include "client/daemon_address.h"
#include "otel/api/span.h"

namespace tensorcast::cli {
namespace {

constexpr int kUsageError = 2;  // the exit code for a command line that makes no sense
constexpr char kCommonGroup[] = "Options of every command";
constexpr char kPath[] = "PATH";

// Each with a message for people: CLI11's own ranges print 300 digits.
CLI::Validator Between(std::optional<double> min, std::optional<double> max) {
  const std::string wanted = !max.has_value()   ? absl::StrCat("of at least ", min.value_or(0))
                             : !min.has_value() ? absl::StrCat("of at most ", *max)
                                                : absl::StrCat("from ", *min, " to ", *max);
  return CLI::Validator(
      [=](const std::string& text) {
        double value = 0;
        const bool good =
            absl::SimpleAtod(text, &value) && value >= min.value_or(value) && value <= max.value_or(value);
        return good ? "" : absl::StrCat(text, " is not a number ", wanted);
      },
      "");
}

// A number alone does not say what it counts.
CLI::Validator DurationBetween(std::optional<double> min, std::optional<double> max) {
  const std::string shortest = DurationText(absl::Seconds(min.value_or(0)));
  const std::string wanted = max.has_value()
                                 ? absl::StrCat("from ", shortest, " to ", DurationText(absl::Seconds(*max)))
                                 : absl::StrCat("of at least ", shortest);
  return CLI::Validator(
      [=](const std::string& text) -> std::string {
        double number = 0;
        if (absl::SimpleAtod(text, &number)) {
          return absl::StrCat(text, " has no unit: write ", text, "s for seconds, ", text,
                              "m for minutes or ", text, "h for hours");
        }
        const absl::StatusOr<absl::Duration> value = ParseDuration(text);
        if (!value.ok()) return std::string(value.status().message());
        const double seconds = absl::ToDoubleSeconds(*value);
        const bool good = seconds >= min.value_or(0) && seconds <= max.value_or(seconds);
        return good ? "" : absl::StrCat(text, " is not a duration ", wanted);
      },
      "");
}

const CLI::Validator kSize(
    [](const std::string& text) -> std::string {
      double number = 0;
      if (absl::SimpleAtod(text, &number)) {
        return absl::StrCat(text, " has no unit: write ", text, "MiB or ", text, "GiB, or ", text,
                            "B for bytes");
      }
      return std::string(ParseSize(text).status().message());
    },
    "");

// CLI11 takes -1 for 2^64 - 1.
const CLI::Validator kUnsigned(
    [](const std::string& text) {
      uint64_t value = 0;
      return absl::SimpleAtoi(text, &value) ? "" : text + " is not a whole number of at least 0";
    },
    "");

const CLI::Validator kNotEmpty(
    [](const std::string& text) { return text.empty() ? "the value is empty" : ""; }, "");

void AddCommon(CLI::App* command, Role role, CommonFlags& common) {
  CLI::Validator exists = CLI::ExistingFile;
  exists.description("");  // it would stand behind PATH in --help
  command->option_defaults()->group(kCommonGroup);
  command->add_option("--config", common.config, "YAML configuration file")->check(exists)->type_name(kPath);
  Flags flags(command);
  flags.Add("--set", common.sets, "Override one key of the configuration: a.b.c=value");
  flags.Add("--json", common.json, "Print the result as JSON");
  flags.Add("--tracing", common.tracing,
            "Send telemetry to an OpenTelemetry collector (observability.otel.enabled)");
  flags.Add("--otlp-endpoint", common.otlp_endpoint,
            "Send telemetry to this OTLP collector: http://host:port");
  flags.Add("--trace-file", common.trace_file,
            "Write this process's spans to a file for Perfetto or chrome://tracing", {.path = true});
  if (role == Role::kClient) {
    flags.Add("--daemon", common.daemon,
              absl::StrCat("Daemon to talk to: unix:/path, the path of a socket, or host:port. Default: "
                           "client.daemon of the configuration, else ",
                           client::kDaemonSearch));
  }
  command->option_defaults()->group("Options");  // CLI11's own, for the flags of the command
}

// The keys of a section of the configuration, as --help shows them.
std::string KeysOf(const std::string& section) {
  const v1::Config defaults = config::Defaults();
  const auto* field = v1::Config::descriptor()->FindFieldByName(section);
  return absl::StrCat(
      "Keys of the section \"", section, "\" of the configuration, for --config and --set ", section,
      ".key=value, with\ntheir defaults (`tensorcast config show` has the other sections):\n\n",
      config::ToYaml(v1::Config::GetReflection()->GetMessage(defaults, field)));
}

struct Chosen {
  const Command* command = nullptr;
  std::string words;  // "key bind"
  Run run;
};

// CLI11 calls back while it still parses, so a callback only notes what was chosen; it runs after the parse,
// when all flags are set and telemetry is up.
void AddCommand(CLI::App& parent, const Command& command, const std::string& group, CommonFlags& common,
                Chosen& chosen) {
  CLI::App* app = parent.add_subcommand(command.name, command.help);
  // Without help a command works but is not listed.
  if (command.help.empty()) app->group("");
  if (!command.commands.empty()) {
    app->require_subcommand(1);
    for (const Command& each : command.commands) {
      AddCommand(*app, each, group + command.name + " ", common, chosen);
    }
    return;
  }
  // The flags are those of the other program, which parses them.
  if (!command.program.empty()) return;
  AddCommon(app, command.role, common);
  if (!command.config_section.empty()) {
    app->footer([section = command.config_section] { return KeysOf(section); });
  }
  // `bind` binds variables that the returned Run owns. The callback keeps that Run, so the variables live as
  // long as the parser.
  Flags flags(app);
  app->callback(
      [&, words = group + command.name, run = command.bind(flags)] { chosen = {&command, words, run}; });
}

int RunInSpan(const Chosen& chosen, const CommonFlags& common) {
  otel::ScopedSpan span(absl::StrCat("Command/", chosen.words), TraceContext());
  const int code = chosen.run(common);
  if (code != 0) span->SetError("exit code", absl::StrCat(code));
  return code;
}

// Telemetry is up before the command begins, and flushed when it has ended.
int RunObserved(const Chosen& chosen, const CommonFlags& common) {
  if (chosen.command->role == Role::kSilent) return chosen.run(common);
  const bool server = chosen.command->role == Role::kServer;
  // The umask is set before the first file is made: what a server keeps is for its own user.
  if (server) umask(0077);
  otel::ResourceAttributes resource;
  if (chosen.command->resource != nullptr) resource = chosen.command->resource(common);
  absl::StatusOr<CommandTelemetry> telemetry =
      StartTelemetry(common, server ? chosen.command->name : "client", resource);
  if (!telemetry.ok()) return Fail(telemetry.status());
  const int code = chosen.command->spanned ? RunInSpan(chosen, common) : chosen.run(common);
  // A server's telemetry ends with the object, without a word on stderr: its log says what was lost.
  if (!server) EndCommandTelemetry(*telemetry);
  return code;
}

// What is wrong when a word stands where a command is expected and is none; empty when that is not it. CLI11
// says only that a command is missing.
std::string UnknownCommand(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  for (const std::string& word : words) {
    // The command is complete here, or an option stands in its place: the parser's own message is right then.
    if (command->get_require_subcommand_min() == 0 || word.empty() || word.front() == '-') return "";
    const auto named = command->get_subcommands([&](const CLI::App* one) { return one->get_name() == word; });
    if (named.empty()) {
      const std::string name = app.get_name() + (command == &app ? "" : " " + command->get_name());
      return "\"" + word + "\" is not a command of " + name + "; see " + name + " --help";
    }
    command = named.front();
  }
  return "";
}

}  // namespace

template <class T>
void Flags::Add(const std::string& name, T& value, const std::string& help, const FlagRules& rules) {
  CLI::Option* option = nullptr;
  if constexpr (std::is_same_v<T, bool>) {
    option = command_->add_flag(name, value, help);
  } else if constexpr (std::is_same_v<T, absl::Duration>) {
    // The check below runs before this function and refuses what cannot be parsed, so the old value never
    // stays for a wrong text.
    option = command_->add_option_function<std::string>(
        name, [&value](const std::string& text) { value = ParseDuration(text).value_or(value); }, help);
    option->type_name("DURATION")->check(DurationBetween(rules.min, rules.max));
    if (rules.show_default) option->default_str(DurationText(value));
  } else {
    option = command_->add_option(name, value, help);
  }
  // A list grows with each use of its flag; other flags may be given once.
  if constexpr (std::is_same_v<T, std::vector<std::string>>) option->take_all();
  if constexpr (std::is_same_v<T, std::optional<uint32_t>> || std::is_same_v<T, uint64_t> ||
                std::is_same_v<T, std::optional<uint64_t>>) {
    option->check(kUnsigned);
  }
  if (rules.required) option->required();
  if (rules.not_empty) option->check(kNotEmpty);
  if (rules.path) option->type_name(kPath);
  if (rules.size) option->type_name("SIZE")->check(kSize);
  if constexpr (!std::is_same_v<T, absl::Duration>) {
    if (rules.show_default) option->capture_default_str();
    if (rules.min.has_value() || rules.max.has_value()) option->check(Between(rules.min, rules.max));
  }
  if (!rules.choices.empty()) option->check(CLI::IsMember(rules.choices));
}

// The types that commands use. Instantiated here, so that CLI11 stays out of every other source.
template void Flags::Add(const std::string&, bool&, const std::string&, const FlagRules&);
template void Flags::Add(const std::string&, int&, const std::string&, const FlagRules&);
template void Flags::Add(const std::string&, uint64_t&, const std::string&, const FlagRules&);
template void Flags::Add(const std::string&, double&, const std::string&, const FlagRules&);
template void Flags::Add(const std::string&, std::string&, const std::string&, const FlagRules&);
template void Flags::Add(const std::string&, absl::Duration&, const std::string&, const FlagRules&);
template void Flags::Add(const std::string&, std::optional<uint32_t>&, const std::string&, const FlagRules&);
template void Flags::Add(const std::string&, std::optional<uint64_t>&, const std::string&, const FlagRules&);
template void Flags::Add(const std::string&, std::optional<std::string>&, const std::string&,
                         const FlagRules&);
template void Flags::Add(const std::string&, std::vector<std::string>&, const std::string&, const FlagRules&);

std::string OtherProgram(const std::vector<Command>& commands, int argc, const char* const* argv) {
  // CLI11 has not parsed anything yet, so the command is the first word that is not an option. No option
  // before the command takes a value.
  const char* const* const word =
      std::find_if(argv + std::min(argc, 1), argv + argc, [](const char* one) { return *one != '-'; });
  if (word == argv + argc) return "";
  const auto named =
      std::ranges::find_if(commands, [word](const Command& command) { return command.name == *word; });
  return named == commands.end() ? "" : named->program;
}

namespace {

// The program, and what its parsing fills. The parser points to its neighbours.
struct Program {
  Program(const std::vector<Command>& commands, const char* about, const std::string& name)
      : app(about, name) {
    app.require_subcommand(1);
    app.set_version_flag("--version", TENSORCAST_VERSION);
    for (const Command& command : commands) AddCommand(app, command, "", common, chosen);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  CLI::App app;
  CommonFlags common;
  Chosen chosen;
};

// What the manual page, the completion and the reference show of a flag: from the parser itself, so that they
// cannot differ from what it accepts.
FlagDescription DescribeFlag(const CLI::Option& option) {
  FlagDescription flag{.default_value = option.get_default_str(),
                       .help = option.get_description(),
                       .required = option.get_required(),
                       .common = option.get_group() == kCommonGroup};
  if (option.get_positional()) {
    flag.names = {option.get_name(/*positional=*/true)};
  } else {
    for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  }
  if (option.get_items_expected_max() == 0) return flag;
  // "TEXT:{daemon,all}": the type, then what each check says of itself.
  const std::string type = option.get_type_name();
  flag.value = type.substr(0, type.find(':'));
  const size_t open = type.find('{');
  const size_t close = type.find('}');
  if (open != std::string::npos && close != std::string::npos) {
    flag.choices = absl::StrSplit(type.substr(open + 1, close - open - 1), ',');
  }
  return flag;
}

CommandDescription DescribeApp(const CLI::App& app) {
  CommandDescription command{.name = app.get_name(), .help = app.get_description()};
  for (const CLI::Option* option : app.get_options()) {
    (option->get_positional() ? command.arguments : command.options).push_back(DescribeFlag(*option));
  }
  const auto shown = [](const CLI::App* one) { return !one->get_group().empty(); };
  for (const CLI::App* one : app.get_subcommands(shown)) command.commands.push_back(DescribeApp(*one));
  return command;
}

}  // namespace

CommandDescription Describe(const std::vector<Command>& commands) {
  return DescribeApp(Program(commands, kAbout, "tensorcast").app);
}

int ParseAndRun(const std::vector<Command>& commands, int argc, const char* const* argv, const char* about) {
  Program program(commands, about,
                  argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "tensorcast");
  try {
    program.app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (const std::string unknown = UnknownCommand(program.app, {argv + 1, argv + argc}); !unknown.empty()) {
      std::fprintf(stderr, "%s\n", unknown.c_str());
      return kUsageError;
    }
    // CLI11 throws for --help and --version, too; exit prints them, and returns 0.
    return program.app.exit(error) == 0 ? 0 : kUsageError;
  }
  if (program.chosen.command == nullptr) return kUsageError;  // another program's
  // Before the configuration is read, since its errors are printed in this form, too.
  PrintErrorsAsJson(program.common.json);
  return RunObserved(program.chosen, program.common);
}

}  // namespace tensorcast::cli
