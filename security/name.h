// The name of a process in its certificate: a URI in the form of a SPIFFE ID
// (https://github.com/spiffe/spiffe/blob/main/standards/SPIFFE-ID.md),
//
//   spiffe://DOMAIN/tensorcast/global-store         the global store      (also .../global-store/NAME)
//   spiffe://DOMAIN/tensorcast/node/NAME            a store daemon, by its node's name
//   spiffe://DOMAIN/tensorcast/operator/NAME        runs the cluster      (also .../operator)
//   spiffe://DOMAIN/tensorcast/client/NAME          puts and gets         (also .../client)
//
// Values and pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tensorcast::security {

enum class Role { kGlobalStore, kNode, kOperator, kClient };

// The role's text in a URI: "global-store", "node", "operator" or "client".
std::string_view RoleText(Role role);

struct Name {
  std::string trust_domain;
  Role role = Role::kClient;
  std::string name;  // within the role; empty: none; never empty for a node

  // The URI; ParseName reads it back.
  std::string ToString() const;

  friend bool operator==(const Name&, const Name&) = default;
};

inline constexpr size_t kMaxUriBytes = 2048;  // SPIFFE's limits
inline constexpr size_t kMaxDomainBytes = 255;

// INVALID_ARGUMENT for anything except the four forms above in exactly this spelling. Names can therefore be
// compared as texts.
absl::StatusOr<Name> ParseName(std::string_view uri);

// Parses the part after ".../tensorcast/": "node/a", "client". Errors are those of ParseName.
absl::StatusOr<Name> ParseNameIn(std::string_view trust_domain, std::string_view path);

// INVALID_ARGUMENT unless the domain consists of lower-case letters, digits, dots, dashes and underscores,
// and has at most kMaxDomainBytes.
absl::Status CheckTrustDomain(std::string_view domain);

}  // namespace tensorcast::security
