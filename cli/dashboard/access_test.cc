#include "cli/dashboard/access.h"

#include <gmock/gmock.h>

namespace tensorcast::dashboard::access_test {
namespace {

TEST(Access, Token_GivesOneSessionOnce) {
  Access access;
  const std::string token = access.NewToken();
  EXPECT_EQ(token.size(), 64u) << "256 bits";
  const std::optional<std::string> session = access.Redeem(token);
  ASSERT_TRUE(session.has_value());
  EXPECT_TRUE(access.HasSession(*session));
  EXPECT_FALSE(access.Redeem(token).has_value());
  EXPECT_FALSE(access.HasSession(token)) << "a token is not a session";
}

TEST(Access, UnknownTokens_GiveNoSession) {
  Access access;
  const std::string token = access.NewToken();
  EXPECT_FALSE(access.Redeem("").has_value());
  EXPECT_FALSE(access.Redeem(token.substr(1)).has_value());
  EXPECT_FALSE(access.Redeem(token + "0").has_value());
  EXPECT_FALSE(access.HasSession(""));
}

TEST(Access, TokensAndSessions_EndWithTheirTime) {
  SteadyTime now;
  Access access([&] { return now; });
  const std::string late = access.NewToken();
  const std::string early = access.NewToken();
  const std::optional<std::string> session = access.Redeem(early);
  now += kTokenLife;
  EXPECT_FALSE(access.Redeem(late).has_value());
  EXPECT_TRUE(access.HasSession(session.value_or("")));
  now += kSessionLife;
  EXPECT_FALSE(access.HasSession(session.value_or("")));
}

TEST(Access, ManyTokensAndSessions_OldestGoes) {
  Access access;
  const std::string first = access.NewToken();
  for (size_t i = 0; i < kMaxTokens; ++i) access.NewToken();
  EXPECT_FALSE(access.Redeem(first).has_value());
  const std::optional<std::string> oldest = access.Redeem(access.NewToken());
  for (size_t i = 0; i < kMaxSessions; ++i) (void)access.Redeem(access.NewToken());
  EXPECT_FALSE(access.HasSession(oldest.value_or("")));
}

TEST(LocalPath, OtherServers_BecomeTheFirstPage) {
  EXPECT_EQ(LocalPath("/node?node=a"), "/node?node=a");
  for (const char* wanted :
       {"", "//evil", "/\\evil", "https://evil", "evil", "/a\\b", "/\t/evil", "javascript:x"}) {
    EXPECT_EQ(LocalPath(wanted), "/") << wanted;
  }
}

TEST(AllowedHosts, Port_IsPartOfTheName) {
  EXPECT_THAT(AllowedHosts({"LocalHost", "::1"}, 7465, /*tls=*/false),
              ::testing::ElementsAre("localhost:7465", "[::1]:7465"));
  EXPECT_THAT(AllowedHosts({"a"}, 443, /*tls=*/true), ::testing::ElementsAre("a:443", "a"));
}

}  // namespace
}  // namespace tensorcast::dashboard::access_test
