#include "rpc/grant_token/grant_token.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <cstdint>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/byte_codec.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast::rpc {
namespace {

constexpr uint8_t kVersion = 3;
constexpr size_t kMacBytes = 32;
// Version, expiry and epoch, seven empty texts with their lengths, and the MAC (FORMAT.md).
constexpr size_t kSmallestToken = 1 + 2 * 8 + 7 * 2 + kMacBytes;

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

// The texts of a token, in their order.
template <class Claims>
auto TextsOf(Claims& claims) {
  return std::array{&claims.grant_id,      &claims.replica_id,  &claims.artifact_id, &claims.receiver_node_id,
                    &claims.receiver_name, &claims.source_name, &claims.lane};
}

absl::StatusOr<GrantClaims> DecodeClaims(std::string_view bytes) {
  ByteReader reader(bytes, ByteOrder::kBigEndian);
  GrantClaims claims;
  claims.expires = absl::Seconds(static_cast<int64_t>(reader.Get<uint64_t>()));
  claims.epoch = reader.Get<uint64_t>();
  for (std::string* field : TextsOf(claims)) *field = std::string(reader.GetString<uint16_t>());
  if (!reader.AtEnd()) {
    return absl::InvalidArgumentError(
        "read a grant token: the fields do not fill the token exactly; upgrade the older of daemon and "
        "global store");
  }
  return claims;
}

}  // namespace

std::string SignGrant(std::string_view key, const GrantClaims& claims) {
  ByteWriter writer(ByteOrder::kBigEndian);
  // The time is in whole seconds, rounded up: a token never expires before its grant.
  writer.Put(kVersion).Put(
      static_cast<uint64_t>(absl::ToInt64Seconds(absl::Ceil(claims.expires, absl::Seconds(1)))));
  writer.Put(claims.epoch);
  for (const std::string* field : TextsOf(claims)) writer.PutString<uint16_t>(*field);
  CHECK(writer.ok()) << "a grant's names are longer than a token holds";
  std::string token = writer.Take();
  token += Mac(key, token);
  return token;
}

// The order of the checks: length and version, which any sender can write, then the signature, and only then
// the fields. So a field that is looked at is the global store's.
absl::StatusOr<GrantClaims> VerifyGrant(const GrantKey& key, std::string_view token, SteadyTime now) {
  if (token.size() < kSmallestToken) {
    return absl::InvalidArgumentError(absl::StrCat("read a grant token: the token has ", token.size(),
                                                   " bytes, and a token has at least ", kSmallestToken,
                                                   "; request a new grant"));
  }
  if (const auto version = static_cast<uint8_t>(token[0]); version != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("read a grant token: the token has version ", version,
                                                      ", and this daemon reads version ", kVersion,
                                                      "; upgrade the older of daemon and global store"));
  }
  if (key.bytes.empty()) {
    return absl::PermissionDeniedError(
        "verify a grant: this node is not registered with the global store yet; try again in some seconds");
  }
  const std::string_view signed_bytes = token.substr(0, token.size() - kMacBytes);
  const std::string mac = Mac(key.bytes, signed_bytes);
  // In constant time, and before any field but the version is read: whatever follows was written by the
  // global store.
  if (CRYPTO_memcmp(mac.data(), token.data() + signed_bytes.size(), kMacBytes) != 0) {
    return absl::PermissionDeniedError(
        "verify a grant: the token was not signed for this source; try again, and if the error stays, check "
        "that the source's advertised address leads to this source");
  }
  TC_ASSIGN_OR_RETURN(GrantClaims claims, DecodeClaims(signed_bytes.substr(1)));
  if (claims.epoch != key.epoch) {
    return absl::PermissionDeniedError(absl::StrCat("verify a grant: the grant is of epoch ", claims.epoch,
                                                    ", and the key of this source is of epoch ", key.epoch,
                                                    "; request a new grant"));
  }
  // Measured by this daemon's clock since it was given its key. So the wall clocks of two hosts are never
  // compared.
  if (const absl::Duration late = now - key.given - claims.expires; late > kGrantAllowance) {
    return absl::DeadlineExceededError(absl::StrCat("verify a grant: the grant expired ",
                                                    absl::FormatDuration(absl::Trunc(late, absl::Seconds(1))),
                                                    " ago; request a new grant"));
  }
  return claims;
}

}  // namespace tensorcast::rpc
