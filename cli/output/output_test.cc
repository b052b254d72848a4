#include "cli/output/output.h"

#include <gtest/gtest.h>

namespace tensorcast::cli {
namespace {

TEST(FormatBytes, UsesBinaryUnitsAndKeepsSmallCountsExact) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.50 KiB");
  EXPECT_EQ(FormatBytes(uint64_t{1} << 30), "1.00 GiB");
}

TEST(FormatRate, IsInDecimalGigabytesAndADashWhenThereIsNothingToDivide) {
  EXPECT_EQ(FormatRate(2'000'000'000, absl::Seconds(1)), "2.00");
  EXPECT_EQ(FormatRate(1, absl::ZeroDuration()), "-");
  EXPECT_EQ(FormatRate(0, absl::Seconds(1)), "-");
}

TEST(Table, AlignsNumbersRightAndTextLeft) {
  Table table({"name", "bytes"});
  table.Add({"a", "10"});
  table.Add({"long", "7"});
  EXPECT_EQ(table.ToString(),
            "name  bytes\n"
            "a        10\n"
            "long      7\n");
}

}  // namespace
}  // namespace tensorcast::cli
