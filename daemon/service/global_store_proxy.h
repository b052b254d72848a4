// Serves the GlobalStore calls of this daemon's clients: forwards each call with the caller's request
// context. While the global store does not answer, the daemon resolves remembered keys and marks the answers
// as unconfirmed; a request for a confirmed answer then fails. Calls that only nodes make are UNIMPLEMENTED
// here. Thread-safe.
#pragma once

#include <memory>

#include "daemon/global_store_link/global_store_client.h"
#include "daemon/global_store_link/known_keys.h"
#include "rpc/executor.h"

namespace grpc {
class Service;
}

namespace tensorcast::daemon {

// `quick` runs single calls, `waiting` runs watches. All arguments must outlive the server of the service.
std::unique_ptr<grpc::Service> MakeGlobalStoreProxy(std::shared_ptr<GlobalStoreChannel> channel,
                                                    GlobalStoreClient* client, KnownKeys* known_keys,
                                                    rpc::Executor* quick, rpc::Executor* waiting);

}  // namespace tensorcast::daemon
