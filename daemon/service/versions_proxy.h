// Serves the calls of proto/versions.proto in the daemon, and forwards them to the global store with the
// caller's request context (see global_store_proxy.h). Thread-safe.
#pragma once

#include <memory>

#include "daemon/global_store_link/global_store_client.h"
#include "rpc/executor.h"

namespace grpc {
class Service;
}

namespace tensorcast::daemon {

// `quick` runs calls that are answered at once; `waiting` runs calls of version groups. Lifetimes are as for
// MakeGlobalStoreProxy.
std::unique_ptr<grpc::Service> MakeVersionsProxy(std::shared_ptr<GlobalStoreChannel> channel,
                                                 GlobalStoreClient* client, rpc::Executor* quick,
                                                 rpc::Executor* waiting);

}  // namespace tensorcast::daemon
