// The calls that the global store makes to daemons: to ask them for proofs of the bytes that they report
// (proto/possession.proto), for checks of files that they imported, and for a new replica. If `credentials`
// is null, calls are unencrypted. Private to this folder. Thread-safe. All functions block, within the
// context's deadline.
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

// Asks the daemon at `address` to make a replica in host memory, and waits for it. Returns the daemon's
// error, or that of the connection.
absl::Status AskToMaterialize(const RequestContext& context, const std::string& artifact_id,
                              const std::string& address, const CallCredentials& credentials);

struct OriginReport {
  OriginFinding finding = OriginFinding::kSilent;
  std::string reason;  // for people; for an intact origin, why it is not compared
};

// Calls the daemons of the origins, many at once. Waits until one origin is intact or all daemons have
// answered. Takes a few seconds at most, even if many daemons do not answer, since the caller of the global
// store waits too. The reports are in the order of `origins`; nullopt for an origin without an answer at the
// end of the wait.
std::vector<std::optional<OriginReport>> AskForOrigins(const RequestContext& context,
                                                       const std::vector<OriginToCheck>& origins,
                                                       const CallCredentials& credentials);

// Asks the evicting node and the holders of the copies, all at the same time, for one digest: over a fresh
// nonce and the same 16 random ranges of 4 KiB of the image. Waits at most a second, or longer if shared
// objects are read. A node that has only a fraction f of the image passes with probability f^16. A copy is
// proven if its answer equals that of the evicting node.
Proofs ProveCopies(const RequestContext& context, const CopiesToProve& copies,
                   const CallCredentials& credentials);

// Asks the node to digest an accused replica again, and returns whether the replica matches its manifest.
// Blocks until the node has read the whole replica.
absl::StatusOr<bool> AskToDigest(const RequestContext& context, const CopyToProve& accused,
                                 const CallCredentials& credentials);

}  // namespace tensorcast::global_store
