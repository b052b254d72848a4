#include "security/roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"

namespace tensorcast::security::roles_test {
namespace {

using ::testing::HasSubstr;

TEST(Roles, EveryCall_IsAllowedToSomeRole) {
  for (const CallRow& row : CallTable()) EXPECT_NE(RolesOf(row.call), 0) << row.call;
}

TEST(Roles, UnknownCall_IsAllowedToNoRole) {
  EXPECT_EQ(RolesOf("GlobalStore/BindKeys"), 0);
  EXPECT_EQ(RolesText(RolesOf("")), "no role");
}

TEST(Roles, ReadCall_IsAllowedToAllButGlobalStore) {
  const RoleSet roles = RolesOf("GlobalStore/ResolveKey");
  EXPECT_TRUE(Contains(roles, Role::kNode));
  EXPECT_TRUE(Contains(roles, Role::kOperator));
  EXPECT_TRUE(Contains(roles, Role::kClient));
  EXPECT_FALSE(Contains(roles, Role::kGlobalStore));
  EXPECT_EQ(RolesText(roles), "node or operator or client");
}

TEST(Roles, DestructiveCall_IsAllowedOnlyToOperator) {
  for (const char* call :
       {"GlobalStore/DeleteArtifact", "GlobalStore/DeleteKey", "StoreDaemon/EvictReplica"}) {
    EXPECT_EQ(RolesOf(call), Only(Role::kOperator)) << call;
  }
}

std::string CallTableText() {
  std::string text = "| call | global-store | node | operator | client | |\n|---|---|---|---|---|---|\n";
  for (const CallRow& row : CallTable()) {
    absl::StrAppend(&text, "| `", row.call, "` |");
    for (const Role role : {Role::kGlobalStore, Role::kNode, Role::kOperator, Role::kClient}) {
      absl::StrAppend(&text, Contains(row.roles, role) ? " yes |" : " |");
    }
    absl::StrAppend(&text, row.why.empty() ? "" : " ", row.why, " |\n");
  }
  return text;
}

TEST(Roles, SecurityReadme_ContainsCallTable) {
  std::ifstream file(TENSORCAST_SECURITY_README);
  const std::string readme((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_THAT(readme, HasSubstr(CallTableText()));
}

}  // namespace
}  // namespace tensorcast::security::roles_test
