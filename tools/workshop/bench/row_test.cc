#include "tools/workshop/bench/row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tensorcast::bench::row_test {
namespace {

using ::testing::HasSubstr;

TEST(Summary, MedianOfEvenCount_IsMeanOfMiddleTwo) {
  EXPECT_EQ(Summarize({9, 1, 5}).median, 5);
  EXPECT_EQ(Summarize({9, 1, 5, 7}).median, 6);
}

TEST(Summary, Spread_IsRangeDividedByMedian) {
  const Summary summary = Summarize({8, 10, 13});
  EXPECT_EQ(summary.min, 8);
  EXPECT_EQ(summary.max, 13);
  EXPECT_DOUBLE_EQ(summary.Spread(), 0.5);
  EXPECT_EQ(summary.runs, 3);
}

TEST(Percentile, Percentile_IsNearestRank) {
  std::vector<double> samples;
  for (int i = 100; i >= 1; --i) samples.push_back(i);
  EXPECT_EQ(Percentile(samples, 50), 50);
  EXPECT_EQ(Percentile(samples, 99), 99);
  EXPECT_EQ(Percentile(samples, 99.9), 100);
  EXPECT_EQ(Percentile({3}, 1), 3);
}

TEST(MedianInterval, MedianInterval_HasRanksOfSignTest) {
  // The tables have ranks 6 and 15 for 20 samples, 2 and 8 for 9, and none for 5.
  std::vector<double> samples;
  for (int i = 20; i >= 1; --i) samples.push_back(i);
  ASSERT_TRUE(MedianInterval(samples).has_value());
  EXPECT_EQ(MedianInterval(samples)->low, 6);
  EXPECT_EQ(MedianInterval(samples)->high, 15);
  EXPECT_EQ(MedianInterval({1, 2, 3, 4, 5, 6, 7, 8, 9})->low, 2);
  EXPECT_EQ(MedianInterval({1, 2, 3, 4, 5, 6, 7, 8, 9})->high, 8);
  EXPECT_EQ(MedianInterval({1, 2, 3, 4, 5}), std::nullopt);
  EXPECT_EQ(MedianInterval({}), std::nullopt);
}

Row Example() {
  Row row{.bench = "p2p", .lane = "local", .metric = "materialize", .bytes = 1024, .unit = "GB/s"};
  Pairs pairs;
  // The machine was half as fast in the last pair: the medians see it, the pairs do not.
  pairs.Add(20, 10);
  pairs.Add(20, 10);
  pairs.Add(10, 5);
  pairs.Fill("plain copy", &row);
  return row;
}

TEST(Row, Ratio_DividesMediansAndPairRatioIsMedianOfPairs) {
  const Row row = Example();
  EXPECT_EQ(row.value.median, 20);
  ASSERT_TRUE(row.reference.has_value());
  EXPECT_EQ(row.reference->value.median, 10);
  EXPECT_EQ(row.Ratio(), 2.0);
  EXPECT_EQ(row.pair_ratio, 2.0);
}

TEST(Row, RowWithoutReference_HasNoRatio) { EXPECT_EQ(Row{.value = Summarize({1})}.Ratio(), std::nullopt); }

TEST(Json, Json_HasEveryFieldOfEachRow) {
  Row alone{.bench = "load", .lane = "cold", .metric = "wall", .value = Summarize({1}), .unit = "GB/s"};
  alone.note = "no reference: fio is not installed";
  const nlohmann::json json = nlohmann::json::parse(ToJson({Example(), alone}));
  ASSERT_EQ(json.size(), 2u);
  for (const char* field :
       {"bench", "lane", "metric", "bytes", "value", "unit", "min", "max", "spread", "runs", "reference_name",
        "reference_value", "ratio", "pair_ratio", "pair_ratio_low", "pair_ratio_high", "note"}) {
    EXPECT_TRUE(json[0].contains(field)) << field;
    EXPECT_TRUE(json[1].contains(field)) << field;
  }
  EXPECT_EQ(json[0]["bytes"], 1024);
  EXPECT_EQ(json[0]["reference_name"], "plain copy");
  EXPECT_EQ(json[0]["ratio"], 2.0);
  EXPECT_TRUE(json[1]["reference_value"].is_null());
  EXPECT_TRUE(json[1]["ratio"].is_null());
}

TEST(Table, Table_ShowsFiguresReferencesAndNotes) {
  Row row = Example();
  row.note = "why";
  const std::string table = ToTable({row});
  EXPECT_THAT(table, HasSubstr("plain copy"));
  EXPECT_THAT(table, HasSubstr("20.00"));
  EXPECT_THAT(table, HasSubstr("p2p local materialize: why\n"));
}

}  // namespace
}  // namespace tensorcast::bench::row_test
