#include "cli/doctor/finding.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tensorcast::doctor::finding_test {
namespace {

FindingList Some() {
  FindingList findings;
  Check("a", "clock", findings).Ok("in step");
  Check("b", "clock", findings).Warn("2 s behind", "synchronize it");
  Check("b", "damage", findings).Fail("a file is damaged", "remove it");
  return findings;
}

TEST(FindingText, Findings_AreGroupedBySubjectWorstFirst) {
  EXPECT_EQ(ToText(Some(), /*verbose=*/false),
            "b\n"
            "  FAIL  damage          a file is damaged; remove it\n"
            "  warn  clock           2 s behind; synchronize it\n"
            "\n"
            "1 failed, 1 to look at, 1 ok\n");
  EXPECT_EQ(ToText(Some(), /*verbose=*/true).substr(0, 39), "a\n  ok    clock           in step\n\nb\n  ");
}

TEST(FindingJson, Findings_AreAListOfAll) {
  const nlohmann::json list = ToJson(Some());
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[1], (nlohmann::json{{"level", "warn"},
                                     {"subject", "b"},
                                     {"check", "clock"},
                                     {"found", "2 s behind"},
                                     {"change", "synchronize it"}}));
}

TEST(Findings, OneFailure_Fails) {
  FindingList findings = Some();
  EXPECT_TRUE(AnyFailed(findings));
  findings.pop_back();
  EXPECT_FALSE(AnyFailed(findings));
}

}  // namespace
}  // namespace tensorcast::doctor::finding_test
