// What a daemon may read outside of its host: the configuration key `daemon.origins`. A value;
// thread-compatible.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/config_reader.h"
#include "objects/credentials/profile.h"
#include "objects/origins/origins.h"

namespace tensorcast::objects {

struct OriginOptions {
  std::vector<std::string> prefixes;  // as Origins::Parse; none: nothing is read

  // With the endpoints that the environment names. INVALID_ARGUMENT for a text that is not a prefix or not an
  // endpoint.
  absl::StatusOr<Origins> Parse(const Environment& environment) const;

  void FromConfig(ConfigReader& config) { config.Read("daemon.origins", prefixes); }
  void Validate(Findings& findings) const;
};

}  // namespace tensorcast::objects
