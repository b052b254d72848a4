// What nodes say of the files that they imported an artifact from. Private to this folder.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/request_context.h"
#include "global_store/catalog/plans.h"
#include "global_store/inventory/replica.h"
#include "rpc/credentials.h"

namespace tensorcast::global_store {

struct OriginReport {
  OriginFinding finding = OriginFinding::kSilent;
  std::string reason;  // for people; of one that is intact, why it is not compared
};

// Calls the origins' daemons, many at the same time, and waits until one origin is intact or all were heard
// of: for seconds at most, however many do not answer, since the caller of the global store waits, too. The
// reports are in the origins' order; nullopt for those that were not waited for. `credentials` are for the
// calls; null: those are in clear. Thread-safe.
std::vector<std::optional<OriginReport>> AskForOrigins(
    const RequestContext& context, const std::vector<OriginToCheck>& origins,
    const std::shared_ptr<const rpc::Credentials>& credentials);

}  // namespace tensorcast::global_store
