// Handles claims of nodes that need evidence: evictions wait for proofs of the copies that other nodes
// report, and replicas that a receiver accuses are digested again.
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "global_store/service/convert.h"
#include "global_store/service/daemon_calls.h"
#include "global_store/service/handlers.h"
#include "rpc/retry.h"

namespace tensorcast::global_store {
namespace {

// Each round asks other holders than the rounds before, for the time of one proof.
constexpr int kRoundsOfProofs = 3;
// This time is for all attempts at one replica together.
constexpr absl::Duration kLongestDigest = absl::Minutes(10);
constexpr absl::Duration kPauseBetweenDigests = absl::Seconds(1);
constexpr int kTriesToDigest = 5;

}  // namespace

absl::StatusOr<EvictionDecision> Handlers::DecideEviction(const RequestContext& context,
                                                          const NodeIdentity& node,
                                                          const std::string& replica_id) {
  Proofs proofs;
  const auto decide = [&](Directory& directory, SteadyTime now) {
    return directory.evictions().Request(node, replica_id, now, proofs);
  };
  TC_ASSIGN_OR_RETURN(EvictionDecision decision, coordinator_.WithDirectory(decide));
  // With no lock held, for seconds perhaps; then the directory is asked again, since anything may have
  // changed meanwhile. Copies and origins that are still not known count as none.
  bool looked_at_origins = false;
  // Proofs and releases count as rounds. The look at origins is made once, so it needs no count.
  for (int round = 0; round < kRoundsOfProofs;) {
    if (!decision.to_prove.copies.empty()) {
      Proofs found = ProveCopies(context, decision.to_prove, options_.credentials);
      std::ranges::move(found.proven, std::back_inserter(proofs.proven));
      std::ranges::move(found.unproven, std::back_inserter(proofs.unproven));
      ++round;
    } else if (!decision.unchecked_origins.empty() && !std::exchange(looked_at_origins, true)) {
      CheckOrigins(context, decision.unchecked_origins);
    } else if (decision.release_first) {
      const auto release = [&](const Directory& directory, absl::Time now) -> absl::StatusOr<Change> {
        return Change{.facts =
                          directory.evictions().PrepareReleaseOf({node.node_id, replica_id}, proofs, now)};
      };
      TC_RETURN_IF_ERROR(coordinator_.Mutate("", release).status());
      ++round;
    } else {
      break;
    }
    TC_ASSIGN_OR_RETURN(decision, coordinator_.WithDirectory(decide));
  }
  return decision;
}

void Handlers::DigestAccused() {
  const std::vector<CopyToProve> accused = coordinator_.WithDirectory(
      [](Directory& directory, SteadyTime) { return directory.accusations().Take(); });
  for (const CopyToProve& replica : accused) {
    LOG(WARNING) << "a receiver reports that replica " << replica.replica.replica_id << " of node "
                 << replica.node_name << " does not match its manifest; the node digests the replica again";
    const absl::Status started = readings_.Schedule([this, replica] { DigestOne(replica); });
    LOG_IF(ERROR, !started.ok()) << "digest replica " << replica.replica.replica_id << " again: " << started;
  }
}

void Handlers::DigestOne(const CopyToProve& accused) {
  RequestContext context = RequestContext::Background(kLongestDigest);
  context.cancellation = cancel_readings_;
  absl::StatusOr<bool> matches = absl::UnknownError("not asked");
  // A node that digests other replicas refuses for the moment.
  for (int attempt = 0; attempt < kTriesToDigest && !matches.ok(); ++attempt) {
    if (attempt > 0 && !rpc::SleepFor(context, kPauseBetweenDigests, "digest a replica again").ok()) return;
    matches = AskToDigest(context, accused, options_.credentials);
  }
  LOG(INFO) << "digest replica " << accused.replica.replica_id << " of node " << accused.node_name
            << " again, after a receiver reported wrong bytes: "
            << (!matches.ok() ? std::string(matches.status().message())
                : *matches    ? "the node reports that the replica matches its manifest"
                              : "the replica does not match its manifest, and the node drops it");
  // A node drops a replica that does not match, and reports that itself.
  if (!matches.ok() || !*matches) return;
  coordinator_.WithDirectory([&](Directory& directory, SteadyTime) {
    directory.accusations().NoteIntact(accused.replica);
    return true;
  });
}

}  // namespace tensorcast::global_store
