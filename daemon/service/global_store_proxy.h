// Serves the GlobalStore calls of clients in the daemon, and forwards them with the caller's request context,
// so that a client only needs to know its own daemon. The daemon remembers the keys in the answers. While the
// global store is away, errors say so and name its address. The daemon still resolves a remembered key, and
// marks the answer as unconfirmed, unless the request asks for a confirmed answer. The calls that only nodes
// make are UNIMPLEMENTED here. Thread-safe.
#pragma once

#include <memory>

#include "daemon/global_store_link/global_store_client.h"
#include "daemon/global_store_link/known_keys.h"
#include "rpc/executor.h"

namespace grpc {
class Service;
}

namespace tensorcast::daemon {

// `quick` runs single calls, `waiting` runs watches. `client` uses `channel`, too. All must outlive the
// server with which the service is registered.
std::unique_ptr<grpc::Service> MakeGlobalStoreProxy(std::shared_ptr<GlobalStoreChannel> channel,
                                                    GlobalStoreClient* client, KnownKeys* known_keys,
                                                    rpc::Executor* quick, rpc::Executor* waiting);

}  // namespace tensorcast::daemon
