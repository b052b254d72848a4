#include "objects/origins/origins.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/text.h"
#include "objects/http/local_address.h"

namespace tensorcast::objects {
namespace {

// Whether servers and libraries could disagree about which path this is.
bool IsAmbiguous(std::string_view path) {
  const std::vector<std::string_view> parts = absl::StrSplit(absl::StripPrefix(path, "/"), '/');
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string decoded = DecodePercent(parts[i]);
    // An empty last part is the '/' at the end of a folder.
    const bool last = i + 1 == parts.size();
    if ((decoded.empty() && !last) || decoded == "." || decoded == "..") return true;
    if (decoded.find_first_of(std::string_view("/\\\0", 3)) != decoded.npos) return true;
  }
  return false;
}

bool IsBelow(std::string_view path, std::string_view prefix) {
  // Only up to a '/': "models" must not open "models2".
  return absl::ConsumePrefix(&path, prefix) && (path.empty() || path[0] == '/');
}

absl::Status NotListed(std::string_view what) {
  return absl::PermissionDeniedError(absl::StrCat(
      "read ", Printable(what.substr(0, what.find('?'))),
      ": the URI is not below an entry of daemon.origins, the list of what this daemon may read; "
      "add a prefix of the URI to daemon.origins"));
}

}  // namespace

absl::StatusOr<Origins::Prefix> Origins::Split(std::string_view uri) {
  const size_t colon = uri.find("://");
  const std::string_view scheme = colon == uri.npos ? "" : uri.substr(0, colon);
  if (scheme == "http" || scheme == "https") {
    TC_ASSIGN_OR_RETURN(const Url url, ParseUrl(uri));
    return Prefix{.place = url.Origin(), .path = url.path};
  }
  if (scheme != "s3" && scheme != "gs" && scheme != "hf") {
    return absl::InvalidArgumentError(absl::StrCat(
        "check origin ", Printable(uri), ": the scheme is not known; write s3, gs, https, http or hf"));
  }
  const std::string_view rest = uri.substr(colon + 3);
  // All repositories are in one place, so that "hf://" alone lists each of them.
  if (scheme == "hf") return Prefix{.place = "hf://", .path = absl::StrCat("/", rest)};
  const std::string_view bucket = rest.substr(0, rest.find('/'));
  if (bucket.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("check origin ", uri, ": the URI has no bucket; name a bucket"));
  }
  return Prefix{.place = absl::StrCat(scheme, "://", bucket),
                .path = rest.size() == bucket.size() ? "/" : std::string(rest.substr(bucket.size()))};
}

absl::StatusOr<Origins> Origins::Parse(const std::vector<std::string>& prefixes,
                                       const std::vector<std::string>& endpoints) {
  Origins origins;
  for (const std::string& text : prefixes) {
    TC_ASSIGN_OR_RETURN(Prefix prefix, Split(text));
    if (IsAmbiguous(prefix.path) || absl::StrContains(text, '?')) {
      return absl::InvalidArgumentError(absl::StrCat(
          "check origin ", Printable(text),
          ": the URI is not a plain prefix; write the URI without '?', without empty path parts, "
          "and without the path parts '.' and '..'"));
    }
    if (absl::EndsWith(prefix.path, "/")) prefix.path.pop_back();
    origins.prefixes_.push_back(std::move(prefix));
  }
  for (const std::string& text : endpoints) {
    TC_ASSIGN_OR_RETURN(Url url, ParseUrl(text));
    origins.endpoints_.push_back(std::move(url));
  }
  return origins;
}

absl::Status Origins::Check(std::string_view uri) const {
  TC_ASSIGN_OR_RETURN(const Prefix wanted, Split(uri));
  const bool listed = std::ranges::any_of(prefixes_, [&](const Prefix& prefix) {
    return wanted.place == prefix.place && IsBelow(wanted.path, prefix.path);
  });
  // An ambiguous path gets the same answer as one that is not listed: what lies there is not shown.
  if (!listed || IsAmbiguous(wanted.path)) return NotListed(uri);
  return absl::OkStatus();
}

bool Origins::IsEndpoint(const Url& url) const {
  return std::ranges::any_of(endpoints_, [&](const Url& endpoint) {
    return SameOrigin(url, endpoint) && IsBelow(url.path, absl::StripSuffix(endpoint.path, "/"));
  });
}

absl::Status Origins::CheckRedirect(const Url& from, const Url& to, bool hub) const {
  // An endpoint is the operator's own choice, which counts as listed.
  if (IsEndpoint(to)) return absl::OkStatus();
  if (!hub) return Check(to.Text());
  // The hub's files lie on hosts of many names, which a list cannot follow. The token does not go there, and
  // names that resolve to local addresses are refused when the connection is made (MayBeLocal).
  if (to.scheme == "https" && !IsLocalHost(to.host)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("follow a redirect of ", from.Origin(), " to ", to.Origin(),
                   ": a hub may redirect only to https, and not to this host; check "
                   "HF_ENDPOINT"));
}

bool Origins::MayBeLocal(const Url& url) const {
  return IsEndpoint(url) || (IsLocalHost(url.host) && Check(url.Text()).ok());
}

}  // namespace tensorcast::objects
