#include <cstdio>

#include "cli/commands/command.h"
#include "cli/commands/server_options.h"
#include "cli/config/config.h"
#include "cli/output/output.h"
#include "proto/config.pb.h"

namespace tensorcast::cli {
namespace {

struct ConfigCheckFlags {
  std::string role = "all";  // the process with a start to try: "daemon", "global-store", "all"
};

void AddFlags(Flags& flags, ConfigCheckFlags& values) {
  flags.Add("--role", values.role, "Server that starts with this configuration on this host",
            {.show_default = true, .choices = {"daemon", "global-store", "all"}});
}

// Calls what a start calls, and so refuses what a start would refuse.
int RunConfigCheck(const CommonFlags& common, const ConfigCheckFlags& flags) {
  const absl::StatusOr<v1::Config> config = LoadConfig(common);
  if (!config.ok()) return Fail(config.status());
  const Roles roles = flags.role == "daemon"         ? Roles::kDaemon
                      : flags.role == "global-store" ? Roles::kGlobalStore
                                                     : Roles::kAll;
  if (const auto good = ReadServerOptions(*config, roles); !good.ok()) return Fail(good.status());
  std::printf(common.json ? "{\"ok\": true}\n" : "the configuration is good\n");
  return 0;
}

// Shows also a configuration with which no server would start: only `config check` looks at what several keys
// have to agree on, and the values help to find the mistake.
int RunConfigShow(const CommonFlags& common) {
  const absl::StatusOr<v1::Config> config = LoadConfig(common);
  if (!config.ok()) return Fail(config.status());
  std::fputs((common.json ? ToJson(*config, /*every_field=*/true) : config::ToYaml(*config)).c_str(), stdout);
  return 0;
}

}  // namespace

Command ConfigCommand() {
  return {.name = "config",
          .help = "Check or show the configuration",
          .commands = {
              {.name = "check",
               .help = "Say what is wrong with a configuration, and where",
               .role = Role::kSilent,
               .bind = Bind(AddFlags, RunConfigCheck)},
              {.name = "show",
               .help = "Print the configuration in force, including defaults, and the help text of each key",
               .role = Role::kSilent,
               .bind = Bind(RunConfigShow)}}};
}

}  // namespace tensorcast::cli
