#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "cli/commands/command.h"
#include "cli/commands/workshop_commands.h"
#include "tools/workshop/commands/commands.h"
#include "tools/workshop/model/llama_model.h"

namespace tensorcast::workshop {
namespace {

using cli::Bind;
using cli::CommonFlags;
using cli::ExitCode;
using cli::Flags;
using cli::InterruptibleContext;
using cli::Role;

struct MakeModelFlags {
  std::string out;
  std::string size = "1GiB";
  int shards = 1;
  uint64_t seed = 1;
};

void AddFlags(Flags& flags, MakeModelFlags& values) {
  flags.Add("out", values.out, "A .safetensors file; with --shards a folder", {.required = true});
  flags.Add("--size", values.size, "Approximate size of the model", {.show_default = true, .size = true});
  flags.Add("--shards", values.shards, "Number of files", {.show_default = true, .min = 1, .max = 999});
  flags.Add("--seed", values.seed,
            "Seed of the weights: a model of the same size and seed has the same bytes",
            {.show_default = true});
}

int RunMakeModel(const CommonFlags& common, const MakeModelFlags& flags) {
  const absl::StatusOr<uint64_t> bytes = ParseSize(flags.size);
  if (!bytes.ok()) return cli::Fail(bytes.status());
  const absl::Status status = WriteLlamaModel(
      flags.out,
      {.bytes = *bytes, .shards = flags.shards, .seed = flags.seed, .context = InterruptibleContext()});
  if (status.ok() && !common.json) std::printf("wrote %s\n", flags.out.c_str());
  if (status.ok() && common.json) {
    const nlohmann::json made = {{"path", flags.out}};
    std::printf("%s\n", made.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  }
  return ExitCode(status);
}

}  // namespace

cli::Command MakeModelCommand() {
  return {.name = cli::kMakeModel.name,
          .help = cli::kMakeModel.help,
          .role = Role::kSilent,
          .bind = Bind(AddFlags, RunMakeModel)};
}

}  // namespace tensorcast::workshop
