// The causes of a slow transfer, and the choice of the one that is named. Pure functions, no errors.
//
// Shares overlap, and some causes are inferred rather than recorded, so the largest share alone does not
// decide: README.md, "How the cause is found".
#pragma once

#include <string>
#include <vector>

namespace tensorcast::explain {

struct Cause {
  // "stopped", "no cpu", "limiter", "cores", "buffers", "space": at one node. "reading", "other receivers":
  // at a source. "network": between a source and this node. "memory", "disk", "object store": of a source
  // that is not a node. "unknown". Empty: nothing was recorded.
  std::string name;
  std::string grant_id;  // the grant of the source that has or hides the cause; empty: this node
  double share = 0;      // of the transfer's wall time, 0 to 1
  std::string why;       // sentences for people: the evidence, then what would help
};

// The cause to name, if `causes` has all possible causes. The result has no name if `causes` is empty.
Cause CauseToName(const std::vector<Cause>& causes);

// The cause to name, if there may be causes that are not in `causes`: only a cause that took more than half
// of the time is sure to be the largest. Without such a cause, the result has no name.
Cause MajorityOf(const std::vector<Cause>& causes);

}  // namespace tensorcast::explain
