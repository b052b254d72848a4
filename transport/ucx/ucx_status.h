// UCX's error codes as statuses. Private to this folder.
#pragma once

#include <ucs/type/status.h>

#include <string_view>

#include "absl/status/status.h"

namespace tensorcast::transport {

// "<what>: <UCX's text>". Losing a peer is UNAVAILABLE, however UCX noticed; never INVALID_ARGUMENT, since no
// argument of a caller reaches UCX unchecked.
absl::Status UcxStatus(ucs_status_t status, std::string_view what);

}  // namespace tensorcast::transport
