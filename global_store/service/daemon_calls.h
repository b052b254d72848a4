// The calls that the global store makes to daemons: what they have of the bytes that they report
// (proto/possession.proto), what became of the files that they imported, and to make a replica. `credentials`
// are for the calls; null: those are in clear. Private to this folder. Thread-safe; all block, within the
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

// Has the daemon at `address` make a replica in host memory, and waits for it. The daemon's error, or that of
// the way to it.
absl::Status AskToMaterialize(const RequestContext& context, const std::string& artifact_id,
                              const std::string& address, const CallCredentials& credentials);

struct OriginReport {
  OriginFinding finding = OriginFinding::kSilent;
  std::string reason;  // for people; of one that is intact, why it is not compared
};

// Calls the origins' daemons, many at the same time, and waits until one origin is intact or all were heard
// of: for seconds at most, however many do not answer, since the caller of the global store waits, too. The
// reports are in the origins' order; nullopt for those that were not waited for.
std::vector<std::optional<OriginReport>> AskForOrigins(const RequestContext& context,
                                                       const std::vector<OriginToCheck>& origins,
                                                       const CallCredentials& credentials);

// Asks the node that wants to evict and the holders of the copies the same question, side by side, for a
// second at most: a digest over a fresh nonce and 16 random ranges of 4 KiB of the image, so that a node
// which has a part f of the image passes with the probability f^16. A copy is proven where its answer is that
// of the node that evicts.
Proofs ProveCopies(const RequestContext& context, const CopiesToProve& copies,
                   const CallCredentials& credentials);

// Has the node digest a replica again that was accused: whether it matches its manifest. Blocks for as long
// as that takes.
absl::StatusOr<bool> AskToDigest(const RequestContext& context, const CopyToProve& accused,
                                 const CallCredentials& credentials);

}  // namespace tensorcast::global_store
