#include "otel/api/exporter_states.h"

#include <utility>

#include "absl/base/const_init.h"
#include "absl/base/no_destructor.h"
#include "absl/synchronization/mutex.h"

namespace tensorcast::otel {
namespace {

ABSL_CONST_INIT absl::Mutex mutex(absl::kConstInit);

// Guarded by `mutex`. Never destroyed: a status may be asked for while the process ends.
std::function<std::vector<ExporterState>()>& Installed() {
  static absl::NoDestructor<std::function<std::vector<ExporterState>()>> installed;
  return *installed;
}

}  // namespace

std::vector<ExporterState> ExporterStates() {
  const absl::MutexLock lock(&mutex);
  // The lock is held during the call, so that InstallExporterStates returns only when no call of the previous
  // function runs any more.
  return Installed() ? Installed()() : std::vector<ExporterState>();
}

void InstallExporterStates(std::function<std::vector<ExporterState>()> states) {
  const absl::MutexLock lock(&mutex);
  Installed() = std::move(states);
}

}  // namespace tensorcast::otel
