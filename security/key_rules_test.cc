#include "security/key_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tensorcast::security::key_rules_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::string_view kRelease = "spiffe://test.example/tensorcast/client/release";
constexpr std::string_view kTrainer = "spiffe://test.example/tensorcast/client/trainer";
constexpr std::string_view kAda = "spiffe://test.example/tensorcast/operator/ada";
constexpr std::string_view kNode = "spiffe://test.example/tensorcast/node/a";

KeyRules Rules(const std::vector<std::string>& rules) {
  const auto parsed = KeyRules::Parse(rules);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.value_or(KeyRules());
}

// By a connection of its own.
bool May(const KeyRules& rules, std::string_view name, std::string_view key) {
  return rules.Check(key, name, name).ok();
}

TEST(KeyRules, WithoutRules_EveryCallerBindsEveryKey) {
  EXPECT_TRUE(May(KeyRules(), kTrainer, "prod/m"));
  EXPECT_TRUE(KeyRules().Check("prod/m", "", "").ok());
}

TEST(KeyRules, KeyRule_AllowsOnlyItsNamesBelowThePrefix) {
  const KeyRules rules = Rules({"prod/=client/release operator/bob"});
  EXPECT_TRUE(May(rules, kRelease, "prod/m"));
  EXPECT_FALSE(May(rules, kTrainer, "prod/m"));
  EXPECT_TRUE(May(rules, kTrainer, "test/m"));
  EXPECT_TRUE(May(rules, kTrainer, "prod"));
  const absl::Status refused = rules.Check("prod/m", kTrainer, kTrainer);
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(std::string(kTrainer)), HasSubstr("begin with prod/"),
                    HasSubstr("client/release, operator/bob")));
}

TEST(KeyRules, KeyRule_WithLongestPrefixDecides) {
  const KeyRules rules = Rules({"prod/=client/release", "prod/trial/=client/trainer", "p=client"});
  EXPECT_TRUE(May(rules, kTrainer, "prod/trial/m"));
  EXPECT_FALSE(May(rules, kRelease, "prod/trial/m"));
  EXPECT_TRUE(May(rules, kRelease, "prod/m"));
  EXPECT_FALSE(May(rules, kRelease, "private"));
}

TEST(KeyRules, CallThroughNode_IsCheckedByNameOfCaller) {
  const KeyRules rules = Rules({"prod/=client/release"});
  EXPECT_TRUE(rules.Check("prod/m", kNode, kRelease).ok());
  const absl::Status refused = rules.Check("prod/m", kNode, kTrainer);
  EXPECT_THAT(
      std::string(refused.message()),
      HasSubstr(absl::StrCat("bind key prod/m: ", kTrainer, " (called through ", kNode, ") may not")));
  EXPECT_FALSE(rules.Check("prod/m", kNode, kNode).ok());
  EXPECT_FALSE(rules.Check("prod/m", kNode, "client").ok());
}

TEST(KeyRules, Operator_BindsEveryKeyUnlessNamedByANode) {
  const KeyRules rules = Rules({"prod/=client/release", "op/=operator/ada operator"});
  EXPECT_TRUE(May(rules, kAda, "prod/m"));
  EXPECT_TRUE(rules.Check("prod/m", "", "operator").ok()) << "by the global store's own socket";
  EXPECT_FALSE(rules.Check("prod/m", "", "client").ok());
  EXPECT_FALSE(rules.Check("prod/m", kNode, kAda).ok());
  EXPECT_FALSE(rules.Check("prod/m", kNode, "operator").ok());
  EXPECT_TRUE(rules.Check("op/m", kNode, kAda).ok());
  EXPECT_TRUE(rules.Check("op/m", kNode, "operator").ok());
}

TEST(KeyRules, InvalidKeyRule_IsRefusedWithItsText) {
  for (const std::string rule :
       {"prod/", "=client/a", "prod/=", "prod/= ", "prod/=node/a", "prod/=global-store", "prod/=anybody",
        "prod/=client/a,client/b", "prod/=client/"}) {
    const absl::Status refused = KeyRules::Parse(std::vector<std::string>{rule}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << rule;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(rule));
  }
  EXPECT_FALSE(KeyRules::Parse(std::vector<std::string>{"p=client/a", "p=client/b"}).ok());
  EXPECT_TRUE(May(Rules({"a=b/=client/trainer"}), kTrainer, "a=b/c"));
}

}  // namespace
}  // namespace tensorcast::security::key_rules_test
