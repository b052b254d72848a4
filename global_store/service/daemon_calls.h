// The calls from the global store to daemons. All functions block, at most until the context's deadline. If
// `credentials` is null, calls are unencrypted. Private to this folder. Thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "global_store/catalog/plans.h"
#include "global_store/inventory/replica.h"
#include "rpc/credentials.h"

namespace tensorcast::global_store {

using CallCredentials = std::shared_ptr<const rpc::Credentials>;

// Asks the daemon at `address` to make a replica in host memory, and waits until the replica is ready.
// Returns the error of the daemon or of the connection.
absl::Status AskToMaterialize(const RequestContext& context, const std::string& artifact_id,
                              const std::string& address, const CallCredentials& credentials);

struct OriginReport {
  OriginFinding finding = OriginFinding::kSilent;
  std::string reason;  // for people; for an intact origin: why its digests were not compared
};

// Asks the daemons of the origins to check them. Waits until one origin is intact or all daemons have
// answered, at most a few seconds. The reports are in the order of `origins`; nullopt: no answer in this
// time.
std::vector<std::optional<OriginReport>> AskForOrigins(const RequestContext& context,
                                                       const std::vector<OriginToCheck>& origins,
                                                       const CallCredentials& credentials);

// Asks the evicting node and the holders of the copies for a digest (proto/possession.proto). The digest
// covers a nonce and 16 random ranges of 4 KiB of the image. A copy is proven if its digest equals the digest
// of the evicting node. A node that has only a fraction f of the image passes with probability f^16. Waits at
// most a second, or at most four seconds if nodes read shared objects.
Proofs ProveCopies(const RequestContext& context, const CopiesToProve& copies,
                   const CallCredentials& credentials);

// Asks the node to digest an accused replica again, and returns whether the replica matches its manifest.
// Blocks until the node has read the whole replica.
absl::StatusOr<bool> AskToDigest(const RequestContext& context, const CopyToProve& accused,
                                 const CallCredentials& credentials);

}  // namespace tensorcast::global_store
