#include "tools/workshop/otel_smoke/otel_smoke.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/programs.h"
#include "cli/commands/workshop_commands.h"
#include "proto/config.pb.h"
#include "tools/workshop/commands/commands.h"

namespace tensorcast::workshop {
namespace {

using cli::Bind;
using cli::CommonFlags;
using cli::ExitCode;
using cli::Flags;
using cli::InterruptibleContext;
using cli::Role;

struct OtelSmokeFlags {
  std::string endpoint;  // empty: a receiver of its own
};

void AddFlags(Flags& flags, OtelSmokeFlags& values) {
  flags.Add(
      "--endpoint", values.endpoint,
      "Send to this OTLP collector, http://host:port, instead of to a receiver that otel-smoke starts. Port "
      "4318 means HTTP, any other port gRPC; --set observability.otel.exporter=otlp_http or otlp_grpc "
      "overrides this rule");
}

int RunOtelSmoke(const CommonFlags& common, const OtelSmokeFlags& flags) {
  const absl::StatusOr<std::string> binary = cli::FindProgram(cli::kTensorcast);
  if (!binary.ok()) return cli::Fail(binary.status());
  const absl::StatusOr<v1::Config> config = cli::LoadConfig(common);
  if (!config.ok()) return cli::Fail(config.status());
  const std::string& exporter = config->observability().otel().exporter();
  if (exporter == "console" || exporter == "none") {
    return cli::Fail(absl::InvalidArgumentError(
        absl::StrCat("otel-smoke: observability.otel.exporter is ", exporter,
                     ", which sends nothing to a collector; set it to otlp_grpc or otlp_http")));
  }
  const otel_smoke::Options options{
      .binary = *binary,
      .endpoint = flags.endpoint.empty() ? common.otlp_endpoint : flags.endpoint,
      .exporter = exporter,
      .json = common.json};
  return ExitCode(otel_smoke::Run(InterruptibleContext(), options));
}

}  // namespace

cli::Command OtelSmokeCommand() {
  return {.name = cli::kOtelSmoke.name,
          .help = cli::kOtelSmoke.help,
          .role = Role::kSilent,
          .bind = Bind(AddFlags, RunOtelSmoke)};
}

}  // namespace tensorcast::workshop
