// One call of a simulated node: its context, request and response. It lives until gRPC has called back.
#pragma once

#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/upkeep.h"
#include "rpc/call.h"

namespace tensorcast::bench {

// As the daemon's (GlobalStoreLink::Options).
inline constexpr absl::Duration kCallTimeout = absl::Seconds(5);

template <class Request, class Response>
struct Flight {
  Flight() : context(UpkeepContext(kCallTimeout)), call(context) {}
  RequestContext context;
  rpc::ClientCall call;
  Request request;
  Response response;
};

}  // namespace tensorcast::bench
