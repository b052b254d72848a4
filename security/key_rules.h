// Which callers may bind which keys (security.keys): each rule has a prefix and the names that may bind keys
// with that prefix. The longest matching prefix decides. If no prefix matches a key, every caller with the
// right to call BindKey may bind it.
//
// A name is the part of a certificate's name after ".../tensorcast/": "client/trainer", "operator/ada".
// "client" and "operator" without a further part are callers without a name, such as callers over a host's
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
  // Every caller may bind every key.
  KeyRules() = default;
  // Each rule is "PREFIX=NAME NAME": "prod/=client/release operator/ada". INVALID_ARGUMENT for a prefix that
  // is empty or occurs twice, a rule without "=" or names, and a name that is not of a client or operator.
  static absl::StatusOr<KeyRules> Parse(std::span<const std::string> rules);

  // PERMISSION_DENIED, with the prefix and the allowed names, unless this caller may bind the key. `peer` is
  // the name in the peer's certificate; empty: none. `asking` is the name of the original caller
  // (rpc::Caller::asking). An operator that makes the call itself may bind every key. If a node forwards an
  // operator's call, the rule must list the operator's name, because any node can claim to call for an
  // operator.
  absl::Status Check(std::string_view key, std::string_view peer, std::string_view asking) const;

  bool empty() const { return names_.empty(); }

 private:
  std::map<std::string, std::set<std::string, std::less<>>, std::less<>> names_;  // by prefix
};

}  // namespace tensorcast::security
