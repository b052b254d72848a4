// Who may bind which keys (security.keys): prefixes, and the names of those who may bind the keys that begin
// with one. Of several that fit the longest decides; where none does, everybody may who may bind keys at all.
//
// A name is what stands behind ".../tensorcast/" in a certificate's: "client/trainer", "operator/ada".
// "client" and "operator" alone are those without a name of their own, among them who comes by a host's
// sockets. Immutable; thread-safe.
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
  // Everybody may bind every key.
  KeyRules() = default;
  // Each is "PREFIX=NAME NAME": "prod/=client/release operator/ada". INVALID_ARGUMENT for an empty prefix,
  // one that stands twice, no name, and a name that is neither a client's nor an operator's.
  static absl::StatusOr<KeyRules> Parse(std::span<const std::string> rules);

  // PERMISSION_DENIED, with the prefix and those who may, unless this caller may bind the key. `peer` is the
  // name in the certificate at the other end, empty where there is none; `asking` who asked for the call, as
  // rpc::Caller has it. An operator who calls by itself may bind every key; one for whom a node calls is one
  // more name, since who has a node's certificate can say so.
  absl::Status Check(std::string_view key, std::string_view peer, std::string_view asking) const;

  bool empty() const { return names_.empty(); }

 private:
  std::map<std::string, std::set<std::string, std::less<>>, std::less<>> names_;  // by prefix
};

}  // namespace tensorcast::security
