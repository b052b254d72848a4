#include "daemon/telemetry/conservation.h"

#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast::daemon {

void Conservation::ComparePull(std::string_view grant_id, std::string_view peer, const PulledBytes& pulled,
                               uint64_t served) {
  // Asked last: a fetch that begins meanwhile must not look as if it had arrived before it was asked for.
  const uint64_t arrived = pulled.arrived;
  const uint64_t asked = pulled.asked;
  // Bytes may be on their way, so none of the three has to be equal.
  const bool holds = arrived <= served && served <= asked;
  otel::metrics::kConservationChecks.Add(1, {"pull", holds ? "ok" : "violated"});
  std::string violation;
  if (!holds) {
    violation = absl::StrCat("pull under grant ", grant_id, " from ", peer, ": the source served ", served,
                             " bytes, and this node received ", arrived, " of the ", asked,
                             " bytes that it asked for");
    LOG(WARNING) << "conservation violated: " << violation
                 << "; send the output of `tensorcast debug bundle` with a report of this defect";
  }
  absl::MutexLock lock(&mutex_);
  status_.set_pulls_compared(status_.pulls_compared() + 1);
  if (holds) return;
  status_.set_violations(status_.violations() + 1);
  status_.set_last_violation(std::move(violation));
}

v1::Conservation Conservation::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

}  // namespace tensorcast::daemon
