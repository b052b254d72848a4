// The calls of proto/versions.proto, served by the daemon and forwarded to the global store with the caller's
// request context, as GlobalStoreProxy does for GlobalStore. Thread-safe.
#pragma once

#include <memory>

#include "daemon/global_store_link/global_store_client.h"
#include "rpc/executor.h"

namespace grpc {
class Service;
}

namespace tensorcast::daemon {

// `quick` runs calls that are answered at once, `waiting` calls of version groups. Lifetimes as for
// MakeGlobalStoreProxy.
std::unique_ptr<grpc::Service> MakeVersionsProxy(std::shared_ptr<GlobalStoreChannel> channel,
                                                 GlobalStoreClient* client, rpc::Executor* quick,
                                                 rpc::Executor* waiting);

}  // namespace tensorcast::daemon
