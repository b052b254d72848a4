#include "base/units.h"

#include <gtest/gtest.h>

namespace tensorcast::units_test {
namespace {

TEST(Units, ParseSize_ReadsExactSizes) {
  EXPECT_EQ(*ParseSize("64GiB"), uint64_t{64} << 30);
  EXPECT_EQ(*ParseSize(" 1.5 mib "), 1536u * 1024);
  EXPECT_EQ(*ParseSize("4096"), 4096u);
  EXPECT_EQ(*ParseSize("10GB"), 10000000000u);
  EXPECT_EQ(*ParseSize("9007199254740993"), 9007199254740993u);  // past what a double holds
  EXPECT_EQ(*ParseSize("0"), 0u);
}

TEST(Units, InvalidSize_IsRefused) {
  for (const char* text : {"", "GiB", "-1", "1.5", "1.5B", "1..5MiB", "12 parsecs", "8388608TiB",
                           "99999999999999999999", "0x10", "1e3", "nan"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseSize(text).status())) << text;
  }
}

TEST(Units, FormatSize_ParsesBack) {
  EXPECT_EQ(FormatSize(uint64_t{64} << 30), "64GiB");
  for (uint64_t bytes :
       {uint64_t{0}, uint64_t{1}, uint64_t{1000}, uint64_t{1} << 20, (uint64_t{1} << 40) + 512}) {
    EXPECT_EQ(*ParseSize(FormatSize(bytes)), bytes);
  }
}

TEST(Units, ParseDuration_ReadsDaysAndRefusesInvalidText) {
  EXPECT_EQ(*ParseDuration("250ms"), absl::Milliseconds(250));
  EXPECT_EQ(*ParseDuration("1h30m"), absl::Minutes(90));
  EXPECT_EQ(*ParseDuration("7d"), absl::Hours(168));
  EXPECT_EQ(*ParseDuration("1d12h"), absl::Hours(36));
  EXPECT_EQ(*ParseDuration("0"), absl::ZeroDuration());
  for (const char* text : {"", "10", "-1s", "-1d", "d", "soon", "1s 2s"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseDuration(text).status())) << text;
  }
}

TEST(Units, DurationText_ReadsBackAsTheSame) {
  EXPECT_EQ(DurationText(absl::Milliseconds(250)), "250ms");
  EXPECT_EQ(DurationText(absl::Minutes(90)), "1h30m");
  EXPECT_EQ(DurationText(absl::Hours(24)), "24h");
  EXPECT_EQ(DurationText(absl::Hours(7 * 24)), "7d");
  EXPECT_EQ(DurationText(absl::Hours(49)), "49h");
  EXPECT_EQ(DurationText(absl::ZeroDuration()), "0s");
  EXPECT_EQ(DurationText(absl::InfiniteDuration()), "inf");
  for (const int minutes : {1, 90, 24 * 60, 48 * 60, 49 * 60, 90 * 24 * 60}) {
    EXPECT_EQ(*ParseDuration(DurationText(absl::Minutes(minutes))), absl::Minutes(minutes));
  }
}

}  // namespace
}  // namespace tensorcast::units_test
