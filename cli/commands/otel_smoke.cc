#include <limits.h>
#include <unistd.h>

#include <cerrno>

#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/otel_smoke/otel_smoke.h"

namespace tensorcast::cli {

int RunOtelSmoke(const CommonFlags& common, const OtelSmokeFlags& flags) {
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self));
  if (length <= 0) return Fail(ErrnoStatus(errno, "readlink", "/proc/self/exe"));
  const otel_smoke::Options options{
      .binary = std::string(self, length),
      .endpoint = flags.endpoint.empty() ? common.otlp_endpoint : flags.endpoint,
      .json = common.json};
  return ExitCode(otel_smoke::Run(InterruptibleContext(), options));
}

}  // namespace tensorcast::cli
