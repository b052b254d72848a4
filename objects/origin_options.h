// What a daemon may read outside of its host, which of it stays as it is, and how fast it is read: the
// configuration keys `daemon.origins`, `daemon.immutable_origins`, `daemon.limits.objects` and
// `daemon.limits.origin`. A value; thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/config_reader.h"
#include "core/artifact/origin.h"
#include "objects/credentials/profile.h"
#include "objects/origins/origins.h"

namespace tensorcast::objects {

struct OriginOptions {
  std::vector<std::string> prefixes;            // as Origins::Parse; none: nothing is read
  std::vector<std::string> immutable_prefixes;  // of objects that are never replaced or deleted
  uint64_t max_rate = 0;                        // of reads, bytes a second; 0: no limit
  uint64_t max_rate_of_origin = 0;              // of reads from one server

  // With the endpoints that the environment names. INVALID_ARGUMENT for a text that is not a prefix or not an
  // endpoint.
  absl::StatusOr<Origins> Parse(const Environment& environment) const;

  // Tells of an object whether it stays as it is: its version can be read by its name, whatever is written
  // after it (IsImmutableVersion), or it is below a prefix that is declared so. INVALID_ARGUMENT as of Parse.
  absl::StatusOr<std::function<bool(const ObjectIdentity&)>> ParseImmutable() const;

  void FromConfig(ConfigReader& config) {
    config.Read("daemon.origins", prefixes);
    config.Read("daemon.immutable_origins", immutable_prefixes);
    config.Read("daemon.limits.objects", max_rate);
    config.Read("daemon.limits.origin", max_rate_of_origin);
  }
  void Validate(Findings& findings) const;
};

// Whether the version is that of an S3 VersionId (not "null", the version that a write replaces), or a
// SHA-256 of a commit of a hub, or of a packed file of ours.
bool IsImmutableVersion(const ObjectIdentity& object);

}  // namespace tensorcast::objects
