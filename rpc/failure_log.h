// One line in the log for each call that a server ends with an error, with the call's trace: handlers return
// their errors and leave the telling to this. Thread-safe.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "base/request_context.h"

namespace tensorcast::rpc {

// Whether a server's answer says that the server failed, rather than that the caller asked for what cannot
// be: then its span is an error, too. After OpenTelemetry's conventions for gRPC.
bool IsServersFault(absl::StatusCode code);

// `method`: "GlobalStore/BindKey". A call that its caller cancelled did not fail. Text that came from outside
// cannot make lines of its own, and a flood of failures is cut to some lines a second, with their number; the
// server's faults are counted apart from what callers asked for in vain.
void LogFailedCall(std::string_view method, const RequestContext& context, const absl::Status& status);

}  // namespace tensorcast::rpc
