// The metadata store on etcd (FORMAT.md), written by the leader.
//
// Each change is one transaction, which compares the leader key and the previous change's number: so it
// happens once though its call is repeated, a call that etcd carries out late changes nothing, and the
// outcome of a change is known before the next is made. Where it stays unknown, or another leads, this
// leadership ends. Changes that wait for the previous one share a transaction. A manifest goes first, in
// pieces below a name of its own, and exists with the transaction that names it; pieces that nothing names
// are swept.
//
// Errors beside those of MetadataStore: UNAVAILABLE from the moment that this process does not lead any more.
// A change that got that answer may have happened. A change that is larger than etcd takes is
// RESOURCE_EXHAUSTED.
#pragma once

#include <memory>
#include <string>

#include "global_store/metadata/etcd/client.h"
#include "global_store/metadata/etcd/leadership.h"
#include "global_store/metadata/metadata_store.h"

namespace tensorcast::global_store::etcd {

// `client` and `leadership` must outlive it. `prefix` as the leadership has it.
std::unique_ptr<MetadataStore> MakeStore(Client* client, Leadership* leadership, const std::string& prefix);

}  // namespace tensorcast::global_store::etcd
