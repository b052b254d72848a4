#include "security/name.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace tensorcast::security {
namespace {

constexpr std::string_view kScheme = "spiffe://";
constexpr std::string_view kProduct = "tensorcast/";
constexpr size_t kMaxShownBytes = 100;
constexpr std::array<std::pair<std::string_view, Role>, 4> kRoles = {{
    {"global-store", Role::kGlobalStore},
    {"node", Role::kNode},
    {"operator", Role::kOperator},
    {"client", Role::kClient},
}};

// As SPIFFE has them. Nothing in a name needs quotes or escapes, in a file, a log or a URI.
bool IsDomainCharacter(char c) {
  return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '.' || c == '-' || c == '_';
}

bool IsSegmentCharacter(char c) { return IsDomainCharacter(c) || absl::ascii_isupper(c); }

// SPIFFE refuses relative segments, with which one name could be written in two ways.
bool IsSegment(std::string_view text) {
  return !text.empty() && text != "." && text != ".." &&
         std::all_of(text.begin(), text.end(), IsSegmentCharacter);
}

absl::Status NotAName(std::string_view text, std::string_view why, std::string_view prefix) {
  return absl::InvalidArgumentError(
      absl::StrCat("parse name \"", absl::Utf8SafeCEscape(text.substr(0, kMaxShownBytes)), "\": ", why,
                   "; write ", prefix, "global-store, node/NAME, operator/NAME or client/NAME"));
}

}  // namespace

std::string_view RoleText(Role role) {
  for (const auto& [text, one] : kRoles) {
    if (one == role) return text;
  }
  return "";
}

std::string Name::ToString() const {
  return absl::StrCat(kScheme, trust_domain, "/", kProduct, RoleText(role), name.empty() ? "" : "/", name);
}

absl::Status CheckTrustDomain(std::string_view domain) {
  if (!domain.empty() && domain.size() <= kMaxDomainBytes &&
      std::all_of(domain.begin(), domain.end(), IsDomainCharacter)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the trust domain \"", absl::Utf8SafeCEscape(domain.substr(0, kMaxShownBytes)),
                   "\" is empty, too long or has characters that are not allowed; use 1 to ", kMaxDomainBytes,
                   " lower-case letters, digits, dots, dashes and underscores, such as models.example"));
}

// `path` is the part behind the product's prefix: a role, or role/name. A node always has a name, as its
// replicas and grants are bound to it.
absl::StatusOr<Name> ParseNameIn(std::string_view trust_domain, std::string_view path) {
  if (const absl::Status domain = CheckTrustDomain(trust_domain); !domain.ok()) {
    return Annotate(domain, "parse a name");
  }
  const size_t slash = path.find('/');
  const std::string_view role = path.substr(0, slash);
  const auto* known =
      std::find_if(kRoles.begin(), kRoles.end(), [&](const auto& one) { return one.first == role; });
  if (known == kRoles.end()) return NotAName(path, "the role is not one of the four", "");
  Name name{.trust_domain = std::string(trust_domain), .role = known->second, .name = ""};
  if (slash != std::string_view::npos) {
    const std::string_view rest = path.substr(slash + 1);
    // One word: a further '/' would be a path that has a meaning to other readers only.
    if (!IsSegment(rest)) {
      return NotAName(
          path, "the NAME behind the role is not one word of letters, digits, dots, dashes and underscores",
          "");
    }
    name.name = std::string(rest);
  }
  if (name.role == Role::kNode && name.name.empty()) return NotAName(path, "a node needs a name", "");
  return name;
}

// One spelling for each name: no port, query or escape. So names are compared as texts.
absl::StatusOr<Name> ParseName(std::string_view uri) {
  const auto not_a_name = [uri](std::string_view why) {
    return NotAName(uri, why, "spiffe://DOMAIN/tensorcast/ and then ");
  };
  std::string_view rest = uri;
  // The length is looked at first, so that a hostile certificate costs little.
  if (uri.size() > kMaxUriBytes) {
    return not_a_name(absl::StrCat("the name is longer than ", kMaxUriBytes, " bytes"));
  }
  if (!absl::ConsumePrefix(&rest, kScheme)) return not_a_name("the name does not begin with spiffe://");
  const size_t slash = rest.find('/');
  if (slash == std::string_view::npos) return not_a_name("the name has no path");
  const std::string_view domain = rest.substr(0, slash);
  rest.remove_prefix(slash + 1);
  if (!absl::ConsumePrefix(&rest, kProduct)) return not_a_name("the path does not begin with /tensorcast/");
  return ParseNameIn(domain, rest);
}

}  // namespace tensorcast::security
