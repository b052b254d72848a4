#include "base/labels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tensorcast::labels_test {
namespace {

using ::testing::HasSubstr;

TEST(Labels, ParseLabels_ReadsNameEqualsValue) {
  const auto labels = ParseLabels({"zone=a", "example.com/rack=r-3_b.2"});
  ASSERT_TRUE(labels.ok()) << labels.status();
  EXPECT_EQ(*labels, (Labels{{"zone", "a"}, {"example.com/rack", "r-3_b.2"}}));
  EXPECT_EQ(LabelsText(*labels), "example.com/rack=r-3_b.2, zone=a");
  EXPECT_EQ(ParseLabels({}).value(), Labels());
}

TEST(Labels, InvalidLabel_IsRefusedByName) {
  const std::string longest(63, 'x');
  EXPECT_TRUE(ParseLabels({longest + "=" + longest}).ok());
  for (const std::string& bad :
       {std::string("zone"), std::string("=a"), std::string("zone="), std::string("zo ne=a"),
        std::string("zone=a=b"), std::string("zone=a,b"), std::string("-zone=a"), std::string("zone/=a"),
        std::string("zone=a/b"), std::string("zone=a."), std::string("zone=\xC3\xA9"),
        std::string("zone=a\n"), longest + "x=a", "zone=" + longest + "x"}) {
    const absl::Status refused = ParseLabels({bad}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << bad;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("label")) << bad;
  }
  EXPECT_THAT(std::string(ParseLabels({"zone=a", "zone=b"}).status().message()),
              HasSubstr("\"zone\" is given twice"));
}

TEST(Labels, MoreThanMaxLabels_AreRefused) {
  std::vector<std::string> pairs;
  for (int i = 0; i < 16; ++i) pairs.push_back(absl::StrCat("l", i, "=v"));
  EXPECT_TRUE(ParseLabels(pairs).ok());
  pairs.emplace_back("one=more");
  EXPECT_THAT(std::string(ParseLabels(pairs).status().message()), HasSubstr("at most 16"));
}

TEST(Labels, HasLabels_RequiresEqualValueForEach) {
  const Labels labels = {{"zone", "a"}, {"rack", "r3"}};
  EXPECT_TRUE(HasLabels(labels, {}));
  EXPECT_TRUE(HasLabels(labels, {{"rack", "r3"}}));
  EXPECT_TRUE(HasLabels(labels, labels));
  EXPECT_FALSE(HasLabels(labels, {{"rack", "r4"}}));
  EXPECT_FALSE(HasLabels(labels, {{"rack", "r3"}, {"row", "1"}}));
  EXPECT_FALSE(HasLabels({}, {{"zone", "a"}}));
}

}  // namespace
}  // namespace tensorcast::labels_test
