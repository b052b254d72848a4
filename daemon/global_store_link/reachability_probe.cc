#include "daemon/global_store_link/reachability_probe.h"

#include <utility>

#include "absl/log/log.h"

namespace tensorcast::daemon {
namespace {

// A single one may be lost on a busy host.
constexpr int kFailures = 3;

}  // namespace

ReachabilityProbe::ReachabilityProbe(std::string address, absl::Duration interval, Check check)
    : address_(std::move(address)),
      check_(std::move(check)),
      looks_(TaskLoop::Every(interval, [this] { Look(); })) {}

void ReachabilityProbe::Look() {
  const absl::Status status = check_(address_);
  // Any other error is an answer.
  const bool silent = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  failures_ = silent ? failures_ + 1 : 0;
  const bool unreachable = failures_ >= kFailures;
  // Logged when it changes, not at each look.
  if (unreachable_.exchange(unreachable) == unreachable) return;
  LOG_IF(ERROR, unreachable) << "reach this node at " << address_
                             << ", the address that other nodes use: " << status
                             << "; other nodes cannot pull from this node; correct daemon.advertise, or "
                                "open the port to this host itself";
  LOG_IF(INFO, !unreachable) << "This node can be reached again at " << address_;
}

}  // namespace tensorcast::daemon
