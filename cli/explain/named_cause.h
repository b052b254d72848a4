// The causes of a slow transfer, and which of several is named. Pure functions, no errors.
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

// The cause to name, if these are all that could be. Without a name if there are none.
Cause CauseToName(const std::vector<Cause>& causes);

// The cause to name, if not every candidate is among these: only a cause that took more than half of the time
// is sure to be the largest. Otherwise without a name.
Cause MajorityOf(const std::vector<Cause>& causes);

}  // namespace tensorcast::explain
