#include "objects/origin_options.h"

#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "base/status.h"
#include "core/disk/packed_format.h"
#include "objects/hf/hub_name.h"
#include "objects/open.h"

namespace tensorcast::objects {

// Without a prefix no endpoint is asked, so a wrong one does not keep a daemon from its start.
absl::StatusOr<Origins> OriginOptions::Parse(const Environment& environment) const {
  if (prefixes.empty()) return Origins();
  return Origins::Parse(prefixes, ConfiguredEndpoints(environment));
}

absl::StatusOr<std::function<bool(const ObjectIdentity&)>> OriginOptions::ParseImmutable() const {
  TC_ASSIGN_OR_RETURN(Origins declared, Origins::Parse(immutable_prefixes));
  return [declared = std::move(declared)](const ObjectIdentity& object) {
    // A place that the operator declares immutable counts without a look at the version.
    return IsImmutableVersion(object) || declared.Check(object.uri).ok();
  };
}

bool IsImmutableVersion(const ObjectIdentity& object) {
  if (absl::StartsWith(object.uri, "hf://")) {
    const absl::StatusOr<HubName> name = HubName::Parse(object.uri);
    return name.ok() && name->IsPinned() && absl::StartsWith(object.version, "sha256:");
  }
  // A packed file of ours is named by its artifact: whatever is written there is the same.
  const std::string_view name = std::string_view(object.uri).substr(object.uri.rfind('/') + 1);
  if (!ArtifactIdOfFileName(name).empty()) return true;
  return absl::StartsWith(object.version, "version:") && object.version != "version:null";
}

void OriginOptions::Validate(Findings& findings) const {
  findings.Add("daemon.immutable_origins", ParseImmutable().status());
  findings.Add("daemon.origins", Parse(ProcessEnvironment()).status());
}

}  // namespace tensorcast::objects
