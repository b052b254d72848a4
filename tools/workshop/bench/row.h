// What a benchmark yields: rows of figures with the reference that each was measured beside. Values,
// thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tensorcast::bench {

// Of one figure measured several times.
struct Summary {
  double median = 0;
  double min = 0;
  double max = 0;
  double mean = 0;
  int runs = 0;

  // (max - min) / median: 0.1 means that the runs lie within 10 %.
  double Spread() const { return median == 0 ? 0 : (max - min) / median; }
};

// REQUIRES: !samples.empty().
Summary Summarize(std::vector<double> samples);

// The smallest sample that `percent` of them do not exceed (nearest rank). REQUIRES: !samples.empty().
double Percentile(std::vector<double> samples, double percent);

struct Reference {
  std::string name;
  Summary value;
};

// Where the median of what was sampled lies, at 95 % confidence.
struct Interval {
  double low = 0;
  double high = 0;

  friend bool operator==(const Interval&, const Interval&) = default;
};

// From the ranks of the samples (the sign test turned round): it assumes nothing of how they are distributed,
// only that they are independent. nullopt below 6 samples, which cannot be that sure of anything.
std::optional<Interval> MedianInterval(std::vector<double> samples);

struct Row {
  std::string bench;   // "p2p", "attach", ...
  std::string lane;    // or what else the figure is of: "cold", "idle"
  std::string metric;  // "materialize", "p50", ...
  uint64_t bytes = 0;  // of one operation; 0 where there are none
  Summary value;
  std::string unit;                       // "GB/s" (10^9 bytes), "ms", "ops/s", "MiB"
  std::optional<Reference> reference;     // same unit
  std::optional<double> pair_ratio;       // median of value / reference pair by pair, where they alternated
  std::optional<Interval> pair_interval;  // of that median
  std::string note;                       // why a reference is missing, which engine won, ...

  // value.median / reference's median.
  std::optional<double> Ratio() const;
};

// The rows as a table for people, notes below it.
std::string ToTable(const std::vector<Row>& rows);

// An array of objects: bench lane metric bytes value unit min max mean spread runs, reference_name
// reference_value reference_min reference_max ratio pair_ratio pair_ratio_low pair_ratio_high (null without a
// reference), note.
std::string ToJson(const std::vector<Row>& rows);

// What is measured beside its reference, a pair a run.
struct Pairs {
  std::vector<double> values;
  std::vector<double> references;

  void Add(double value, double reference) {
    values.push_back(value);
    references.push_back(reference);
  }
  // Fills in value, reference, pair_ratio and pair_interval. REQUIRES: at least one pair.
  void Fill(std::string reference_name, Row* row) const;
};

}  // namespace tensorcast::bench
