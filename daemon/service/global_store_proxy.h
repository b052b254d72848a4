// The calls of GlobalStore that clients make, served by the daemon and forwarded with the caller's request
// context, so that a client needs to know its own daemon only. What the answers say of keys is remembered.
// While the global store is away, errors say so and name it, and a key that is known here is resolved all the
// same, marked as unconfirmed, unless a confirmed answer was asked for. The calls that nodes make are
// UNIMPLEMENTED here. Thread-safe.
#pragma once

#include <memory>

#include "daemon/global_store_link/global_store_client.h"
#include "daemon/global_store_link/known_keys.h"
#include "rpc/executor.h"

namespace grpc {
class Service;
}

namespace tensorcast::daemon {

// `quick` runs single calls, `waiting` watches. `client` is one on the same channel.
// All must outlive the server that the service is registered with.
std::unique_ptr<grpc::Service> MakeGlobalStoreProxy(std::shared_ptr<GlobalStoreChannel> channel,
                                                    GlobalStoreClient* client, KnownKeys* known_keys,
                                                    rpc::Executor* quick, rpc::Executor* waiting);

}  // namespace tensorcast::daemon
