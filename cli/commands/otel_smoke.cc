#include "cli/otel_smoke/otel_smoke.h"
#include "base/status.h"
#include "cli/cluster/process.h"
#include "cli/commands/command.h"

namespace tensorcast::cli {
namespace {

struct OtelSmokeFlags {
  std::string endpoint;  // empty: a receiver of its own
};

void AddFlags(Flags& flags, OtelSmokeFlags& values) {
  flags.Add("--endpoint", values.endpoint,
            "Send to this OTLP collector, http://host:port, instead of a receiver of its own");
}

int RunOtelSmoke(const CommonFlags& common, const OtelSmokeFlags& flags) {
  const absl::StatusOr<std::string> binary = OwnBinary();
  if (!binary.ok()) return Fail(binary.status());
  const otel_smoke::Options options{
      .binary = *binary,
      .endpoint = flags.endpoint.empty() ? common.otlp_endpoint : flags.endpoint,
      .json = common.json};
  return ExitCode(otel_smoke::Run(InterruptibleContext(), options));
}

}  // namespace

Command OtelSmokeCommand() {
  return {
      .name = "otel-smoke",
      .help = "Prove that traces, metrics and logs of a cluster of real processes arrive and fit together",
      .role = Role::kSilent,
      .bind = Bind(AddFlags, RunOtelSmoke)};
}

}  // namespace tensorcast::cli
