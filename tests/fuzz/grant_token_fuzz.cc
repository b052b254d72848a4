// A grant token: the bytes as they are, and as signed claims, since random ones never have the right MAC.
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "rpc/grant_token/grant_token.h"
#include "tests/fuzz/fuzz_target.h"

namespace tensorcast::fuzz {
namespace {

constexpr std::string_view kKey = "0123456789abcdef0123456789abcdef";
constexpr size_t kMacBytes = 32;
constexpr absl::Duration kAge = absl::Hours(10);
const SteadyTime kNow = SteadyTime() + absl::Seconds(1'800'000'000);
const rpc::GrantKey kGrantKey = {std::string(kKey), kNow - kAge, /*epoch=*/7};

std::string Signed(std::string_view claims) {
  unsigned char mac[EVP_MAX_MD_SIZE];
  unsigned int mac_bytes = 0;
  CHECK(HMAC(EVP_sha256(), kKey.data(), static_cast<int>(kKey.size()),
             reinterpret_cast<const unsigned char*>(claims.data()), claims.size(), mac,
             &mac_bytes) != nullptr);
  CHECK_EQ(mac_bytes, kMacBytes);
  return absl::StrCat(claims, std::string_view(reinterpret_cast<const char*>(mac), kMacBytes));
}

}  // namespace

void TestOneInput(std::string_view input) {
  const absl::StatusOr<rpc::GrantClaims> forged = rpc::VerifyGrant(kGrantKey, input, kNow);
  if (forged.ok()) {
    CHECK(Signed(input.substr(0, input.size() - kMacBytes)) == input)
        << "a token that no global store signed is taken";
  }
  CHECK(!rpc::VerifyGrant({}, input, kNow).ok());

  const absl::StatusOr<rpc::GrantClaims> claims = rpc::VerifyGrant(kGrantKey, Signed(input), kNow);
  if (!claims.ok()) return;
  CHECK_GE(claims->expires, kAge - rpc::kGrantAllowance);
  CHECK(rpc::VerifyGrant(kGrantKey, rpc::SignGrant(kKey, *claims), kNow).value() == *claims);
}

std::vector<std::string> Seeds() {
  rpc::GrantClaims claims{"t1", "r1", "tc2:a", "n2", "ucx", kAge, "b", "a", 7};
  const std::string valid = rpc::SignGrant(kKey, claims);
  claims.expires = kAge - absl::Hours(1);
  const std::string expired = rpc::SignGrant(kKey, claims);
  const auto unsigned_part = [](std::string_view token) {
    return std::string(token.substr(0, token.size() - kMacBytes));
  };
  return {valid, unsigned_part(valid), expired, unsigned_part(expired),
          rpc::SignGrant("another key", claims)};
}

}  // namespace tensorcast::fuzz
