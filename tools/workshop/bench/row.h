// The results of a benchmark: rows of figures, each with the reference that was measured beside it. Values,
// thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tensorcast::bench {

// Summarises one figure that was measured several times.
struct Summary {
  double median = 0;
  double min = 0;
  double max = 0;
  double mean = 0;
  int runs = 0;

  // (max - min) / median: 0.1 means that the runs are within 10 %.
  double Spread() const { return median == 0 ? 0 : (max - min) / median; }
};

// REQUIRES: !samples.empty().
Summary Summarize(std::vector<double> samples);

// The smallest sample that at least `percent` of the samples do not exceed (nearest rank). REQUIRES:
// !samples.empty().
double Percentile(std::vector<double> samples, double percent);

struct Reference {
  std::string name;
  Summary value;
};

// The 95 % confidence interval of a median.
struct Interval {
  double low = 0;
  double high = 0;

  friend bool operator==(const Interval&, const Interval&) = default;
};

// Computed from the ranks of the samples (the inverse of the sign test): assumes only that they are
// independent, not how they are distributed. nullopt below 6 samples, which cannot give 95 % confidence.
std::optional<Interval> MedianInterval(std::vector<double> samples);

struct Row {
  std::string bench;   // "p2p", "attach", ...
  std::string lane;    // or another property of the figure: "cold", "idle"
  std::string metric;  // "materialize", "p50", ...
  uint64_t bytes = 0;  // of one operation; 0 without bytes
  Summary value;
  std::string unit;                       // "GB/s" (10^9 bytes), "ms", "ops/s", "MiB"
  std::optional<Reference> reference;     // same unit
  std::optional<double> pair_ratio;       // median of value / reference over the pairs, if they alternated
  std::optional<Interval> pair_interval;  // of that median
  std::string note;                       // why a reference is missing, which engine was fastest, ...

  // value.median / reference's median.
  std::optional<double> Ratio() const;
};

// The rows as a table for people, with the notes below.
std::string ToTable(const std::vector<Row>& rows);

// An array of objects: bench lane metric bytes value unit min max mean spread runs, reference_name
// reference_value reference_min reference_max ratio pair_ratio pair_ratio_low pair_ratio_high (null without a
// reference), note.
std::string ToJson(const std::vector<Row>& rows);

// Values measured beside their references, a pair per run.
struct Pairs {
  std::vector<double> values;
  std::vector<double> references;

  void Add(double value, double reference) {
    values.push_back(value);
    references.push_back(reference);
  }
  // Sets value, reference, pair_ratio and pair_interval. REQUIRES: at least one pair.
  void Fill(std::string reference_name, Row* row) const;
};

}  // namespace tensorcast::bench
