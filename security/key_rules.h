// Which callers may bind which keys (security.keys): prefixes, and the names that may bind keys that begin
// with one. The longest prefix that fits decides; where none fits, every caller that may bind keys may do so.
//
// A name is what stands behind ".../tensorcast/" in a certificate's: "client/trainer", "operator/ada".
// "client" and "operator" alone are callers without a name of their own, such as those of a host's sockets.
// Immutable; thread-safe.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tensorcast::security {

class KeyRules {
 public:
  // Every caller may bind every key.
  KeyRules() = default;
  // Each is "PREFIX=NAME NAME": "prod/=client/release operator/ada". INVALID_ARGUMENT for an empty prefix,
  // one that stands twice, no name, and a name that is neither a client's nor an operator's.
  static absl::StatusOr<KeyRules> Parse(std::span<const std::string> rules);

  // PERMISSION_DENIED, with the prefix and the names that may, unless this caller may bind the key. `peer` is
  // the name in the certificate at the other end, empty where there is none; `asking` the name that asked for
  // the call, as rpc::Caller has it. An operator that calls by itself may bind every key; one that a node
  // calls for is only a name, since any node can claim one.
  absl::Status Check(std::string_view key, std::string_view peer, std::string_view asking) const;

  bool empty() const { return names_.empty(); }

 private:
  std::map<std::string, std::set<std::string, std::less<>>, std::less<>> names_;  // by prefix
};

}  // namespace tensorcast::security
