#include "objects/s3/sigv4.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tensorcast::objects {
namespace {

std::string Hex(std::string_view bytes) { return absl::BytesToHexString(bytes); }

std::string Sha256(std::string_view text) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

std::string HmacSha256(std::string_view key, std::string_view text) {
  std::string mac(SHA256_DIGEST_LENGTH, '\0');
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(),
       reinterpret_cast<unsigned char*>(mac.data()), &size);
  return mac;
}

// Sorted by name, then by value, each with its '='.
std::string CanonicalQuery(std::string_view query) {
  std::vector<std::pair<std::string, std::string>> parameters;
  for (const std::string_view one : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    parameters.push_back(absl::StrSplit(one, absl::MaxSplits('=', 1)));
  }
  // The names and values are encoded by then, and the encoded texts are what is sorted.
  std::ranges::sort(parameters);
  return absl::StrJoin(parameters, "&", absl::PairFormatter("="));
}

// The key that signs on this day, in this region, for this service. The keys on the way to it are wiped.
std::string SigningKey(const Secret& secret, std::string_view day, const SigningScope& scope) {
  // A chain of MACs: a key that is lost signs for one day, region and service alone.
  std::string key = absl::StrCat("AWS4", secret.Reveal());
  for (const std::string_view step : {day, std::string_view(scope.region), std::string_view(scope.service),
                                      std::string_view("aws4_request")}) {
    std::string next = HmacSha256(key, step);
    OPENSSL_cleanse(key.data(), key.size());
    key = std::move(next);
  }
  return key;
}

}  // namespace

HttpHeaders SignV4(std::string_view method, const Url& url, const HttpHeaders& headers, std::string_view body,
                   const Credentials& credentials, const SigningScope& scope) {
  const std::string time = absl::FormatTime("%Y%m%dT%H%M%SZ", scope.time, absl::UTCTimeZone());
  const std::string_view day = std::string_view(time).substr(0, 8);
  const std::string body_digest = Hex(Sha256(body));
  HttpHeaders added = {{"x-amz-content-sha256", body_digest}, {"x-amz-date", time}};
  if (!credentials.session_token.empty()) {
    added.emplace_back("x-amz-security-token", credentials.session_token.Reveal());
  }

  // The map sorts the names in lower case, as the canonical request wants them.
  std::map<std::string, std::string> signed_headers = {{"host", url.Authority()}};
  for (const HttpHeaders* const list : {&headers, &std::as_const(added)}) {
    for (const auto& [name, value] : *list) {
      signed_headers[absl::AsciiStrToLower(name)] = absl::StripAsciiWhitespace(value);
    }
  }
  const std::string names =
      absl::StrJoin(signed_headers, ";", [](std::string* out, const auto& header) { *out += header.first; });
  // Method, path, query, headers, an empty line, the names of the signed headers, the digest of the body. The
  // second "\n" behind the headers makes the empty line.
  const std::string request = absl::StrCat(method, "\n", url.path, "\n", CanonicalQuery(url.query), "\n",
                                           absl::StrJoin(signed_headers, "\n", absl::PairFormatter(":")),
                                           "\n\n", names, "\n", body_digest);

  const std::string place = absl::StrCat(day, "/", scope.region, "/", scope.service, "/aws4_request");
  const std::string to_sign =
      absl::StrCat("AWS4-HMAC-SHA256\n", time, "\n", place, "\n", Hex(Sha256(request)));
  std::string key = SigningKey(credentials.secret_access_key, day, scope);
  const std::string signature = Hex(HmacSha256(key, to_sign));
  OPENSSL_cleanse(key.data(), key.size());
  // The day in the credential has to be the day in x-amz-date, so one text gives both.
  added.emplace_back("authorization",
                     absl::StrCat("AWS4-HMAC-SHA256 Credential=", credentials.access_key_id, "/", place,
                                  ", SignedHeaders=", names, ", Signature=", signature));
  return added;
}

}  // namespace tensorcast::objects
