#include <cstdio>

#include "cli/commands/check_config.h"
#include "cli/commands/commands.h"
#include "cli/commands/json.h"
#include "cli/config/config.h"
#include "proto/config.pb.h"

namespace tensorcast::cli {

int RunConfigCheck(const CommonFlags& common, const ConfigCheckFlags& flags) {
  const absl::StatusOr<v1::Config> config = LoadConfig(common);
  if (!config.ok()) return Fail(config.status());
  const Roles roles = flags.role == "daemon"         ? Roles::kDaemon
                      : flags.role == "global-store" ? Roles::kGlobalStore
                                                     : Roles::kAll;
  if (const absl::Status good = CheckConfig(*config, roles); !good.ok()) return Fail(good);
  std::printf(common.json ? "{\"ok\": true}\n" : "the configuration is good\n");
  return 0;
}

int RunConfigShow(const CommonFlags& common) {
  const absl::StatusOr<v1::Config> config = LoadConfig(common);
  if (!config.ok()) return Fail(config.status());
  std::fputs((common.json ? ToJson(*config, /*every_field=*/true) : config::ToYaml(*config)).c_str(), stdout);
  return 0;
}

}  // namespace tensorcast::cli
