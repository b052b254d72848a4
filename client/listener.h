// Whether a process listens at a daemon's address, asked of the kernel alone and before any call: so that a
// daemon that is not there is told at once and by its cause. Private to this folder. Thread-safe.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/request_context.h"

namespace tensorcast::client {

// `address` is unix:/path or host:port. UNAVAILABLE when nothing listens there, PERMISSION_DENIED when this
// user may not connect, CANCELLED and DEADLINE_EXCEEDED as the context says. A name of several addresses
// needs one that listens. May ask a name server, which takes as long as that does.
absl::Status CheckListener(const std::string& address, const RequestContext& context);

}  // namespace tensorcast::client
