// The metadata store on etcd (FORMAT.md), written by the leader.
//
// Each change is one transaction, which compares the leader key and the number of the previous change. It
// thus happens once even if its call is repeated, a call that etcd carries out late has no effect, and the
// outcome of a change is known before the next is made. If the outcome stays unknown, or another store leads,
// this leadership ends. Changes that wait for the previous one share a transaction. A manifest is written
// first, in pieces below a name of its own, and exists with the transaction that names it; pieces without
// such a transaction are deleted.
//
// Errors besides those of MetadataStore: UNAVAILABLE once this process no longer leads; the change may have
// happened. RESOURCE_EXHAUSTED for a change that is larger than etcd accepts.
#pragma once

#include <memory>
#include <string>

#include "global_store/metadata/etcd/client.h"
#include "global_store/metadata/etcd/leadership.h"
#include "global_store/metadata/metadata_store.h"

namespace tensorcast::global_store::etcd {

// `client` and `leadership` must outlive it. `prefix` as in the leadership's options.
std::unique_ptr<MetadataStore> MakeStore(Client* client, Leadership* leadership, const std::string& prefix);

}  // namespace tensorcast::global_store::etcd
