#include "security/key_rules.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "security/name.h"

namespace tensorcast::security {
namespace {

// The part behind ".../tensorcast/" of a URI name. A caller without a certificate has only a role, which is
// returned as it is.
std::string_view PathOf(std::string_view asking) {
  constexpr std::string_view kBefore = "/tensorcast/";
  const size_t found = asking.find(kBefore);
  return found == std::string_view::npos ? asking : asking.substr(found + kBefore.size());
}

bool IsOperator(std::string_view path) {
  return path == RoleText(Role::kOperator) ||
         absl::StartsWith(path, absl::StrCat(RoleText(Role::kOperator), "/"));
}

absl::Status CheckName(std::string_view rule, std::string_view path) {
  const absl::StatusOr<Name> name = ParseNameIn("any", path);
  if (name.ok() && (name->role == Role::kClient || name->role == Role::kOperator)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("parse key rule \"", rule, "\": \"", path,
                   "\" cannot bind keys; write client/NAME, operator/NAME, client or operator (the last two "
                   "are for callers without a NAME), and separate them with blanks"));
}

}  // namespace

absl::StatusOr<KeyRules> KeyRules::Parse(std::span<const std::string> rules) {
  KeyRules parsed;
  for (const std::string& rule : rules) {
    // A key may have a "=" in it, a name has none.
    const size_t equals = rule.rfind('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("parse key rule \"", rule,
                       "\": the rule is not PREFIX=NAMES; write, for example, prod/=client/release"));
    }
    std::set<std::string, std::less<>> names;
    for (const std::string_view path :
         absl::StrSplit(std::string_view(rule).substr(equals + 1), ' ', absl::SkipEmpty())) {
      TC_RETURN_IF_ERROR(CheckName(rule, path));
      names.emplace(path);
    }
    if (names.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("parse key rule \"", rule,
                       "\": the rule lists no names; add the names that may bind these keys, such as "
                       "client/release"));
    }
    const std::string prefix = rule.substr(0, equals);
    // Refused, since both ways to put two rules together would surprise: more names, or the last one's alone.
    if (!parsed.names_.emplace(prefix, std::move(names)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("parse key rule \"", rule,
                       "\": an earlier rule has the same prefix; write all names of a prefix into one rule"));
    }
  }
  return parsed;
}

// The longest prefix of the key decides alone, so a rule for a part of the keys can be stricter than the
// rule for all. Keys without a rule are free.
absl::Status KeyRules::Check(std::string_view key, std::string_view peer, std::string_view asking) const {
  const std::set<std::string, std::less<>>* names = nullptr;
  std::string_view longest;
  for (const auto& [prefix, who] : names_) {
    if (prefix.size() <= longest.size() || !absl::StartsWith(key, prefix)) continue;
    longest = prefix;
    names = &who;
  }
  if (names == nullptr) return absl::OkStatus();
  const std::string_view path = PathOf(asking);
  // A node that calls for a client names that client itself, and could name an operator. So an operator's
  // role counts only for the operator's own connection.
  const bool by_itself = peer.empty() || peer == asking;
  if ((by_itself && IsOperator(path)) || names->contains(path)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "bind key ", key, ": ", asking, by_itself ? "" : absl::StrCat(" (called through ", peer, ")"),
      " may not bind keys that begin with ", longest, "; let ", absl::StrJoin(*names, ", "),
      " or an operator with a direct connection to the global store bind the key, or change security.keys of "
      "the global store"));
}

}  // namespace tensorcast::security
