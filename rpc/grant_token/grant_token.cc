#include "rpc/grant_token/grant_token.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <cstdint>
#include <optional>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast::rpc {
namespace {

constexpr uint8_t kVersion = 2;
constexpr size_t kMacBytes = 32;
constexpr size_t kSmallestToken = 1 + 8 + 5 * 2 + kMacBytes;
constexpr size_t kLargestField = 65535;

void AppendBigEndian(std::string& out, uint64_t value, int bytes) {
  for (int shift = (bytes - 1) * 8; shift >= 0; shift -= 8) out.push_back(static_cast<char>(value >> shift));
}

void AppendField(std::string& out, std::string_view field) {
  CHECK_LE(field.size(), kLargestField);
  AppendBigEndian(out, field.size(), 2);
  out.append(field);
}

std::string Mac(std::string_view key, std::string_view signed_bytes) {
  CHECK(!key.empty());
  std::array<unsigned char, kMacBytes> mac;
  unsigned int length = 0;
  const unsigned char* made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                   reinterpret_cast<const unsigned char*>(signed_bytes.data()),
                                   signed_bytes.size(), mac.data(), &length);
  CHECK(made != nullptr && length == kMacBytes) << "OpenSSL made no HMAC-SHA256";
  return std::string(mac.begin(), mac.end());
}

// Reads from the front of a view; nullopt, and nothing read, where there is too little.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  std::optional<uint64_t> Integer(size_t bytes) {
    if (bytes_.size() < bytes) return std::nullopt;
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value = value << 8 | static_cast<uint8_t>(bytes_[i]);
    bytes_.remove_prefix(bytes);
    return value;
  }

  bool Field(std::string& out) {
    const std::optional<uint64_t> size = Integer(2);
    if (!size.has_value() || bytes_.size() < *size) return false;
    out = std::string(bytes_.substr(0, *size));
    bytes_.remove_prefix(*size);
    return true;
  }

  bool done() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

absl::StatusOr<GrantClaims> DecodeClaims(std::string_view bytes) {
  Reader reader(bytes);
  GrantClaims claims;
  const std::optional<uint64_t> expires = reader.Integer(8);
  const bool whole = expires.has_value() && reader.Field(claims.transport_id) &&
                     reader.Field(claims.replica_id) && reader.Field(claims.artifact_id) &&
                     reader.Field(claims.receiver_node_id) && reader.Field(claims.lane) && reader.done();
  if (!whole) return absl::InvalidArgumentError("a grant token's fields do not fill it exactly");
  claims.expires = absl::Seconds(static_cast<int64_t>(*expires));
  return claims;
}

}  // namespace

std::string SignGrant(std::string_view key, const GrantClaims& claims) {
  std::string token;
  token.push_back(kVersion);
  AppendBigEndian(
      token, static_cast<uint64_t>(absl::ToInt64Seconds(absl::Ceil(claims.expires, absl::Seconds(1)))), 8);
  AppendField(token, claims.transport_id);
  AppendField(token, claims.replica_id);
  AppendField(token, claims.artifact_id);
  AppendField(token, claims.receiver_node_id);
  AppendField(token, claims.lane);
  token += Mac(key, token);
  return token;
}

absl::StatusOr<GrantClaims> VerifyGrant(const GrantKey& key, std::string_view token, SteadyTime now) {
  if (token.size() < kSmallestToken) {
    return absl::InvalidArgumentError(
        absl::StrCat("a grant token has at least ", kSmallestToken, " bytes, this has ", token.size()));
  }
  if (const auto version = static_cast<uint8_t>(token[0]); version != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("grant token of version ", version,
                                                      ", this daemon reads ", kVersion,
                                                      ": upgrade the older of daemon and global store"));
  }
  if (key.bytes.empty()) {
    return absl::PermissionDeniedError("no grant can be verified before this node is registered");
  }
  const std::string_view signed_bytes = token.substr(0, token.size() - kMacBytes);
  const std::string mac = Mac(key.bytes, signed_bytes);
  if (CRYPTO_memcmp(mac.data(), token.data() + signed_bytes.size(), kMacBytes) != 0) {
    return absl::PermissionDeniedError(
        "the grant token was not signed for this source: ask the global store for a new grant");
  }
  TC_ASSIGN_OR_RETURN(GrantClaims claims, DecodeClaims(signed_bytes.substr(1)));
  if (const absl::Duration late = now - key.given - claims.expires; late > kGrantAllowance) {
    return absl::DeadlineExceededError(absl::StrCat("the grant expired ",
                                                    absl::FormatDuration(absl::Trunc(late, absl::Seconds(1))),
                                                    " ago: ask for a new one"));
  }
  return claims;
}

}  // namespace tensorcast::rpc
