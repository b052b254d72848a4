// The configuration of a daemon's reads outside this host: the places that the daemon may read
// (`daemon.origins`), the places with immutable objects (`daemon.immutable_origins`) and the max rates
// (`daemon.limits.objects` and `daemon.limits.origin`). A value; thread-compatible.
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
  uint64_t max_rate = 0;                        // of all reads together, bytes per second; 0: no limit
  uint64_t max_rate_of_origin = 0;              // of reads from each server, bytes per second; 0: no limit

  // Parses `prefixes`, together with the endpoints that the environment names. INVALID_ARGUMENT for a text
  // that is not a prefix or not an endpoint.
  absl::StatusOr<Origins> Parse(const Environment& environment) const;

  // Makes a function that tells whether an object is immutable. An object is immutable if its version can
  // never get other bytes (IsImmutableVersion), or if its URI is below one of `immutable_prefixes`.
  // INVALID_ARGUMENT as Parse.
  absl::StatusOr<std::function<bool(const ObjectIdentity&)>> ParseImmutable() const;

  void FromConfig(ConfigReader& config) {
    config.Read("daemon.origins", prefixes);
    config.Read("daemon.immutable_origins", immutable_prefixes);
    config.Read("daemon.limits.objects", max_rate);
    config.Read("daemon.limits.origin", max_rate_of_origin);
  }
  void Validate(Findings& findings) const;
};

// Whether the object's version can never get other bytes: an S3 VersionId (except "null", which a write
// replaces), a SHA-256 at a commit of a hub, or a packed file of TensorCast.
bool IsImmutableVersion(const ObjectIdentity& object);

}  // namespace tensorcast::objects
