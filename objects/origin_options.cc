#include "objects/origin_options.h"

#include "objects/open.h"

namespace tensorcast::objects {

// Without a prefix no endpoint is asked, so a wrong one does not keep a daemon from its start.
absl::StatusOr<Origins> OriginOptions::Parse(const Environment& environment) const {
  if (prefixes.empty()) return Origins();
  return Origins::Parse(prefixes, ConfiguredEndpoints(environment));
}

void OriginOptions::Validate(Findings& findings) const {
  findings.Add("daemon.origins", Parse(ProcessEnvironment()).status());
}

}  // namespace tensorcast::objects
