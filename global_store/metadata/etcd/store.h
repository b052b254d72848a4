// The metadata store on etcd (FORMAT.md), written by the leader.
//
// Each change is one transaction, which compares the leader key and the number of the previous change. So a
// change happens once even if its call is repeated, and a call that etcd carries out late has no effect. The
// outcome of a change is known before the next change is made. If the outcome stays unknown, or another store
// leads, this leadership ends. Changes that wait for the previous one share a transaction. A manifest is
// first written in pieces, below a new name. It exists once a transaction refers to that name; pieces without
// such a transaction are deleted.
//
// Errors besides those of MetadataStore: UNAVAILABLE once this process no longer leads; then it is unknown
// whether the change happened. RESOURCE_EXHAUSTED for a change that is larger than etcd accepts.
#pragma once

#include <memory>
#include <string>

#include "global_store/metadata/etcd/client.h"
#include "global_store/metadata/etcd/leadership.h"
#include "global_store/metadata/metadata_store.h"

namespace tensorcast::global_store::etcd {

// `client` and `leadership` must outlive the store. `prefix`: that of LeadershipOptions.
std::unique_ptr<MetadataStore> MakeStore(Client* client, Leadership* leadership, const std::string& prefix);

}  // namespace tensorcast::global_store::etcd
