// The causes of a slow transfer, and the choice of the cause to name. Pure functions, no errors. The cause
// with the largest share is not always named: README.md, "How the cause is found".
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

// Returns the cause to name. `causes` must have all possible causes. If it is empty, the result has no name.
Cause CauseToName(const std::vector<Cause>& causes);

// Returns the cause that took more than half of the time; this is the cause to name if `causes` may be
// incomplete. The result has no name if no cause took so much.
Cause MajorityOf(const std::vector<Cause>& causes);

}  // namespace tensorcast::explain
