// Publishes the artifacts of this node's puts at the global store, and binds their keys. If the global store
// does not know this node, the node checks in first. Records new bindings in KnownKeys.
//
// Errors are those of the global store. INTERNAL if the store and this daemon compute different ids for one
// artifact. Thread-safe.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/artifact/manifest.h"
#include "core/artifact/origin.h"
#include "core/engine/engine.h"
#include "daemon/global_store_link/global_store_client.h"
#include "daemon/global_store_link/global_store_link.h"
#include "daemon/global_store_link/known_keys.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

// What a put publishes about its artifact, beside the manifest and the replica.
struct Publication {
  const v1::KeyBinding* binding = nullptr;  // null: no key
  std::string asking;                       // the caller that binds the key
  Origin origin;                            // of an import; empty for a put
  std::string files_id;                     // the files beside the tensors, which the key binds too
};

class Publisher {
 public:
  // All must outlive this object.
  Publisher(const StoreEngine* engine, GlobalStoreClient* global_store, GlobalStoreLink* link,
            KnownKeys* known_keys)
      : engine_(*engine), global_store_(*global_store), link_(*link), known_keys_(*known_keys) {}

  // `replica`: this node's replica of the artifact. `difference`: a replica of the difference that is
  // published in the same transaction; null: none.
  absl::StatusOr<v1::PublishArtifactResponse> Publish(const RequestContext& context, const Manifest& manifest,
                                                      const v1::Replica& replica,
                                                      const Publication& publication,
                                                      const ReplicaLease* difference) const;
  // Adds another origin to a published artifact.
  absl::Status AddOrigin(const RequestContext& context, const Manifest& manifest, const Origin& origin,
                         const std::string& asking) const;

 private:
  const StoreEngine& engine_;
  GlobalStoreClient& global_store_;
  GlobalStoreLink& link_;
  KnownKeys& known_keys_;
};

}  // namespace tensorcast::daemon
