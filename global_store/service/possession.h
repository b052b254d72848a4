// Asks daemons for what they have of the bytes that they report (proto/possession.proto), and compares.
// Private to this folder. Thread-safe.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "global_store/inventory/replica.h"
#include "rpc/credentials.h"

namespace tensorcast::global_store {

// Asks the node that wants to evict and the holders of the copies the same question, side by side, for a
// second at most: a digest over a fresh nonce and 16 random ranges of 4 KiB of the image, so that a node
// which has a part f of the image passes with the probability f^16. A copy is proven where its answer is that
// of the node that evicts. `credentials` are for the calls; null: those are in clear.
Proofs ProveCopies(const RequestContext& context, const CopiesToProve& copies,
                   const std::shared_ptr<const rpc::Credentials>& credentials);

// Has the node digest a replica again that was accused: whether it matches its manifest. Blocks for as long
// as that takes, within the context's deadline.
absl::StatusOr<bool> AskToDigest(const RequestContext& context, const CopyToProve& accused,
                                 const std::shared_ptr<const rpc::Credentials>& credentials);

}  // namespace tensorcast::global_store
