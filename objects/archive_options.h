// The configuration key `daemon.archives`: the places outside this host to which the daemon may write. A
// value; thread-compatible.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/config_reader.h"
#include "objects/credentials/profile.h"
#include "objects/origins/origins.h"

namespace tensorcast::objects {

struct ArchiveOptions {
  std::vector<std::string> places;  // "s3://bucket/prefix"; none: nothing is written

  // As OriginOptions::Parse. INVALID_ARGUMENT also for a place that is not an s3:// URI.
  absl::StatusOr<Origins> Parse(const Environment& environment) const;

  void FromConfig(ConfigReader& config) { config.Read("daemon.archives", places); }
  void Validate(Findings& findings) const;
};

}  // namespace tensorcast::objects
