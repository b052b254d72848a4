// Asks a daemon to make a replica, and waits for it. Private to this folder.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/request_context.h"
#include "proto/types.pb.h"
#include "rpc/credentials.h"

namespace tensorcast::global_store {

// `address` is that of the node's StoreDaemon service; `credentials` null: the call is in clear. The daemon's
// error, or that of the way to it. Ends with the context at the latest.
absl::Status AskToMaterialize(const RequestContext& context, const std::string& artifact_id,
                              const v1::Location& location, const std::string& address,
                              const std::shared_ptr<const rpc::Credentials>& credentials);

}  // namespace tensorcast::global_store
