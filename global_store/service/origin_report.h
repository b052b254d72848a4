// What a node says of the files that it imported an artifact from. Private to this folder.
#pragma once

#include <string>

#include "global_store/directory/types.h"
#include "otel/api/request_context.h"

namespace tensorcast::global_store {

struct OriginReport {
  OriginFinding finding = OriginFinding::kSilent;
  std::string reason;  // for people, unless it is intact
};

// Calls the origin's daemon and waits, for seconds at most: the caller of the global store waits, too. A
// daemon that cannot tell is as one that does not answer. Thread-safe.
OriginReport AskForOrigin(const RequestContext& context, const OriginToCheck& checked);

}  // namespace tensorcast::global_store
