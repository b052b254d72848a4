// The metadata store on etcd (FORMAT.md), written by the leader.
//
// Each change is one transaction (change_writer.h). A manifest is first written in pieces, below a new name.
// It exists once a transaction refers to that name; pieces without such a transaction are deleted.
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
