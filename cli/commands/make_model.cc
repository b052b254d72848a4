#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "cli/commands/commands.h"
#include "cli/model/llama_model.h"

namespace tensorcast::cli {

int RunMakeModel(const CommonFlags& common, const MakeModelFlags& flags) {
  const absl::StatusOr<uint64_t> bytes = ParseSize(flags.size);
  if (!bytes.ok()) return Fail(bytes.status());
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

}  // namespace tensorcast::cli
