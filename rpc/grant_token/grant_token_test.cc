#include "rpc/grant_token/grant_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/escaping.h"
#include "base/steady_time.h"

namespace tensorcast::rpc {
namespace {

using ::testing::HasSubstr;

constexpr char kKeyBytes[] = "0123456789abcdef0123456789abcdef";
const SteadyTime kGiven = SteadyTime() + absl::Seconds(1'700'000'000);
constexpr absl::Duration kLife = absl::Seconds(1800);
const SteadyTime kExpires = kGiven + kLife;
const GrantKey kKey = {kKeyBytes, kGiven, /*epoch=*/7};

GrantClaims Claims() {
  return {.grant_id = "t1",
          .replica_id = "r1",
          .artifact_id = "tc2:a",
          .receiver_node_id = "n2",
          .lane = "ucx",
          .expires = kLife,
          .receiver_name = "b",
          .source_name = "a",
          .epoch = 7};
}

TEST(GrantToken, VerifyGrant_ReturnsSignedClaims) {
  auto claims = VerifyGrant(kKey, SignGrant(kKeyBytes, Claims()), kExpires);
  ASSERT_TRUE(claims.ok()) << claims.status();
  EXPECT_EQ(*claims, Claims());
}

TEST(GrantToken, GrantToken_HasDocumentedBytes) {
  const std::string token = SignGrant(kKeyBytes, Claims());
  EXPECT_EQ(absl::BytesToHexString(token),
            "03"
            "0000000000000708"
            "0000000000000007"
            "0002"
            "7431"
            "0002"
            "7231"
            "0005"
            "7463323a61"
            "0002"
            "6e32"
            "0001"
            "62"
            "0001"
            "61"
            "0003"
            "756378"
            "c3fc240f328b7bbb155e393e77c2c378d54419915c606c8378f8dd6d25ee65f5");
}

TEST(GrantToken, TokenOfOtherKey_IsRefused) {
  auto claims = VerifyGrant({"another key", kGiven, /*epoch=*/7}, SignGrant(kKeyBytes, Claims()), kExpires);
  EXPECT_EQ(claims.status().code(), absl::StatusCode::kPermissionDenied);
}

TEST(GrantToken, TokenOfOtherEpoch_IsRefused) {
  auto claims = VerifyGrant({kKeyBytes, kGiven, /*epoch=*/8}, SignGrant(kKeyBytes, Claims()), kExpires);
  EXPECT_EQ(claims.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(claims.status().message(), HasSubstr("of epoch 7, and the key of this source is of epoch 8"));
}

TEST(GrantToken, SourceWithoutKey_RefusesToken) {
  EXPECT_EQ(VerifyGrant({"", kGiven, /*epoch=*/7}, SignGrant(kKeyBytes, Claims()), kExpires).status().code(),
            absl::StatusCode::kPermissionDenied);
}

TEST(GrantToken, ExpiredToken_IsAcceptedOnlyWithinAllowance) {
  const std::string token = SignGrant(kKeyBytes, Claims());
  EXPECT_TRUE(VerifyGrant(kKey, token, kExpires + kGrantAllowance).ok());
  auto late = VerifyGrant(kKey, token, kExpires + kGrantAllowance + absl::Seconds(1));
  EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(late.status().message(), HasSubstr("ago"));
}

TEST(GrantToken, TokenOfOtherVersion_IsFailedPrecondition) {
  std::string token = SignGrant(kKeyBytes, Claims());
  token[0] = 1;
  EXPECT_EQ(VerifyGrant(kKey, token, kExpires).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(GrantToken, TokenWithAnyBitFlipped_IsRefused) {
  const std::string token = SignGrant(kKeyBytes, Claims());
  for (size_t bit = 0; bit < token.size() * 8; ++bit) {
    std::string changed = token;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(VerifyGrant(kKey, changed, kExpires).ok()) << "bit " << bit;
  }
}

TEST(GrantToken, TruncatedOrExtendedToken_IsRefused) {
  const std::string token = SignGrant(kKeyBytes, Claims());
  for (size_t size = 0; size < token.size(); ++size) {
    EXPECT_FALSE(VerifyGrant(kKey, token.substr(0, size), kExpires).ok()) << size;
  }
  EXPECT_FALSE(VerifyGrant(kKey, token + "x", kExpires).ok());
}

TEST(GrantToken, RandomBytes_AreRefused) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::string token(random() % 200, '\0');
    for (char& c : token) c = static_cast<char>(random());
    if (!token.empty() && random() % 2 == 0) token[0] = 3;
    EXPECT_FALSE(VerifyGrant(kKey, token, kExpires).ok());
  }
}

TEST(GrantToken, BytesShiftedBetweenFields_ChangeSignature) {
  GrantClaims moved = Claims();
  moved.grant_id = "t1r";
  moved.replica_id = "1";
  EXPECT_NE(SignGrant(kKeyBytes, Claims()), SignGrant(kKeyBytes, moved));
}

}  // namespace
}  // namespace tensorcast::rpc
