#include "otel/sdk/counter_cells.h"

#include <gmock/gmock.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

namespace tensorcast::otel::sdk::counter_cells_test {
namespace {

using ::testing::Pair;
using ::testing::UnorderedElementsAre;

std::map<std::string, int64_t> Read(const CounterCells& cells) {
  std::map<std::string, int64_t> totals;
  cells.ForEach([&](int64_t total, LabelValues labels) {
    std::string name;
    for (const std::string_view label : labels) name += std::string(label) + ";";
    totals[name] += total;
  });
  return totals;
}

void Add(CounterCells& cells, int64_t value, std::vector<std::string_view> labels) {
  cells.Add(value, labels);
}

TEST(CounterCells, EachLabelCombination_HasItsOwnTotal) {
  CounterCells cells;
  Add(cells, 1, {"a", "b"});
  Add(cells, 2, {"b", "a"});
  Add(cells, 3, {"ab", ""});
  Add(cells, -4, {"a", "b"});
  EXPECT_THAT(Read(cells), UnorderedElementsAre(Pair("a;b;", -3), Pair("b;a;", 2), Pair("ab;;", 3)));
}

TEST(CounterCells, CounterWithoutLabels_HasOneCell) {
  CounterCells cells;
  EXPECT_THAT(Read(cells), UnorderedElementsAre());
  Add(cells, 5, {});
  Add(cells, 6, {});
  EXPECT_THAT(Read(cells), UnorderedElementsAre(Pair("", 11)));
}

TEST(CounterCells, Labels_AreCopied) {
  CounterCells cells;
  std::string label = "first";
  Add(cells, 1, {label});
  label = "other";
  EXPECT_THAT(Read(cells), UnorderedElementsAre(Pair("first;", 1)));
}

TEST(CounterCells, ConcurrentAddsToSameCells_LoseNothing) {
  constexpr int kThreads = 8, kLabels = 100, kRounds = 50;
  CounterCells cells;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&cells] {
      for (int i = 0; i < kRounds * kLabels; ++i) {
        const std::string label = std::to_string(i % kLabels);
        Add(cells, 1, {label});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto totals = Read(cells);
  EXPECT_EQ(totals.size(), size_t{kLabels});
  for (const auto& [label, total] : totals) EXPECT_EQ(total, kThreads * kRounds) << label;
}

TEST(CounterCells, TooManyLabelCombinations_ShareOneCell) {
  CounterCells cells;
  constexpr size_t kMany = CounterCells::kMaxCells + 100;
  for (size_t i = 0; i < kMany; ++i) {
    const std::string label = std::to_string(i);
    Add(cells, 1, {label, "x"});
  }
  const auto totals = Read(cells);
  EXPECT_EQ(totals.size(), CounterCells::kMaxCells + 1);
  EXPECT_EQ(totals.at("other;other;"), 100);
}

}  // namespace
}  // namespace tensorcast::otel::sdk::counter_cells_test
