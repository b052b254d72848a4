// Which errors are worth another try: UNAVAILABLE, unless whoever returned it knows better. The mark travels
// with the status from server to client, so that not everybody on the way waits for the same thing in turn.
#pragma once

#include "absl/status/status.h"

namespace tensorcast::rpc {

// The same error, not to be retried: who returns it has waited as long as makes sense. OK stays OK.
absl::Status WithoutRetry(absl::Status status);

bool IsWorthRetrying(const absl::Status& status);

}  // namespace tensorcast::rpc
