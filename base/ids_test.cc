#include "base/ids.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace tensorcast::ids_test {
namespace {

TEST(Uuid, NewUuid_IsRandomVersionFour) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const std::string uuid = NewUuid();
    ASSERT_EQ(uuid.size(), 36u);
    for (size_t dash : {8, 13, 18, 23}) EXPECT_EQ(uuid[dash], '-') << uuid;
    EXPECT_EQ(uuid[14], '4') << uuid;
    EXPECT_TRUE(absl::StrContains("89ab", uuid.substr(19, 1))) << uuid;
    EXPECT_EQ(uuid.find_first_not_of("0123456789abcdef-"), std::string::npos) << uuid;
    EXPECT_TRUE(IsUuid(uuid)) << uuid;
    seen.insert(uuid);
  }
  EXPECT_EQ(seen.size(), 100u);
}

TEST(Uuid, IsUuid_RejectsOtherText) {
  const std::string uuid = "0f8fad5b-d9cb-469f-a165-70867728950e";
  EXPECT_TRUE(IsUuid(uuid));
  EXPECT_FALSE(IsUuid(""));
  EXPECT_FALSE(IsUuid(uuid + "0"));
  EXPECT_FALSE(IsUuid(uuid.substr(1)));
  EXPECT_FALSE(IsUuid(absl::AsciiStrToUpper(uuid)));
  EXPECT_FALSE(IsUuid(std::string(36, '-')));
  EXPECT_FALSE(IsUuid(std::string(36, '0')));
  EXPECT_FALSE(IsUuid("0f8fad5bd-9cb-469f-a165-70867728950e"));
}

TEST(RandomHex, RandomHex_HasTwoDigitsPerByteAndIsUnique) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const std::string hex = RandomHex(16);
    EXPECT_EQ(hex.size(), 32u);
    EXPECT_EQ(hex.find_first_not_of("0123456789abcdef"), std::string::npos) << hex;
    seen.insert(hex);
  }
  EXPECT_EQ(seen.size(), 100u);
}

}  // namespace
}  // namespace tensorcast::ids_test
