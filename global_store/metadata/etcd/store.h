// The metadata store on etcd (FORMAT.md), written by the leader.
//
// Errors besides those of MetadataStore: UNAVAILABLE: this process no longer leads, and the change may have
// happened. RESOURCE_EXHAUSTED: the change is larger than etcd accepts.
#pragma once

#include <memory>
#include <string>

#include "global_store/metadata/etcd/client.h"
#include "global_store/metadata/etcd/leadership.h"
#include "global_store/metadata/metadata_store.h"

namespace tensorcast::global_store::etcd {

// `client` and `leadership` must outlive the store. `prefix`: as in LeadershipOptions.
std::unique_ptr<MetadataStore> MakeStore(Client* client, Leadership* leadership, const std::string& prefix);

}  // namespace tensorcast::global_store::etcd
