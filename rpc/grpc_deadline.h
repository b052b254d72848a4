// Our deadlines as gRPC takes them. Internal to this folder.
#pragma once

#include <grpc/support/time.h>

#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast::rpc {

// By the monotonic clock, which gRPC measures in anyway: a deadline by the wall clock would move when that is
// set.
inline gpr_timespec ToGrpcDeadline(SteadyTime deadline) {
  if (deadline == SteadyTime::InfiniteFuture()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(absl::ToInt64Nanoseconds(TimeLeft(deadline)), GPR_TIMESPAN));
}

}  // namespace tensorcast::rpc
