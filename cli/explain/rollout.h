// Shows how an artifact reached the fleet, as text: the tree of its receivers, the path to the last receiver,
// the slowest receivers with their causes, and the hop that delayed the last receiver most. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/daemon.pb.h"
#include "proto/global_store.pb.h"

namespace tensorcast::explain {

// Why a receiver was slow, according to its daemon.
struct SlowCause {
  std::string name;     // a cause (named_cause.h), or the part of the transfer that took long; empty: unknown
  std::string at;       // "node-c", or "node-a -> node-c" for the link
  std::string why;      // sentences for people
  std::string problem;  // why the cause is unknown
};

// Reads the cause from a daemon's answer for the receiver's transfer.
SlowCause CauseOf(const v1::ExplainTransferResponse& response);

// `wanted`: the key or artifact id in the request. `causes`: the causes of the slowest receivers, in the
// order of `rollout.slowest`.
std::string ExplainRollout(std::string_view wanted, const v1::ExplainRolloutResponse& rollout,
                           const std::vector<SlowCause>& causes);
// For programs: {"rollout": the message, "causes": [{"node", "cause", "at", "why", "problem"}]}.
std::string RolloutJson(const v1::ExplainRolloutResponse& rollout, const std::vector<SlowCause>& causes);

}  // namespace tensorcast::explain
