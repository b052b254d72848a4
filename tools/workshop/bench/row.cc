#include "tools/workshop/bench/row.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/output/output.h"

namespace tensorcast::bench {
namespace {

// Four significant digits say all that a benchmark knows.
std::string Number(double value) {
  const double size = std::abs(value);
  if (size >= 1000) return absl::StrFormat("%.0f", value);
  if (size >= 100) return absl::StrFormat("%.1f", value);
  if (size >= 10) return absl::StrFormat("%.2f", value);
  return absl::StrFormat("%.3f", value);
}

std::string Text(const std::optional<Interval>& interval) {
  return interval ? absl::StrFormat("%.3f-%.3f", interval->low, interval->high) : "-";
}

std::string Optional(const std::optional<double>& value) {
  return value ? absl::StrFormat("%.2f", *value) : "-";
}

nlohmann::json Json(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

nlohmann::json Json(const Row& row) {
  nlohmann::json json = {{"bench", row.bench},
                         {"lane", row.lane},
                         {"metric", row.metric},
                         {"bytes", row.bytes},
                         {"value", row.value.median},
                         {"unit", row.unit},
                         {"min", row.value.min},
                         {"max", row.value.max},
                         {"mean", row.value.mean},
                         {"spread", row.value.Spread()},
                         {"runs", row.value.runs},
                         {"reference_name", nullptr},
                         {"reference_value", nullptr},
                         {"reference_min", nullptr},
                         {"reference_max", nullptr},
                         {"ratio", Json(row.Ratio())},
                         {"pair_ratio", Json(row.pair_ratio)},
                         {"pair_ratio_low", nullptr},
                         {"pair_ratio_high", nullptr},
                         {"note", row.note}};
  if (row.pair_interval) {
    json["pair_ratio_low"] = row.pair_interval->low;
    json["pair_ratio_high"] = row.pair_interval->high;
  }
  if (row.reference) {
    json["reference_name"] = row.reference->name;
    json["reference_value"] = row.reference->value.median;
    json["reference_min"] = row.reference->value.min;
    json["reference_max"] = row.reference->value.max;
  }
  return json;
}

}  // namespace

Summary Summarize(std::vector<double> samples) {
  CHECK(!samples.empty());
  std::sort(samples.begin(), samples.end());
  const size_t middle = samples.size() / 2;
  return {.median = samples.size() % 2 == 1 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2,
          .min = samples.front(),
          .max = samples.back(),
          .mean = std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size()),
          .runs = static_cast<int>(samples.size())};
}

double Percentile(std::vector<double> samples, double percent) {
  CHECK(!samples.empty());
  const double rank = std::ceil(percent / 100 * static_cast<double>(samples.size()));
  const size_t index = static_cast<size_t>(std::clamp(rank, 1.0, static_cast<double>(samples.size()))) - 1;
  std::nth_element(samples.begin(), samples.begin() + static_cast<ptrdiff_t>(index), samples.end());
  return samples[index];
}

std::optional<Interval> MedianInterval(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  // Of n samples on either side of the median with equal chance, fewer than `rank` lie below it with a
  // probability of `tail`: the largest rank for which that is at most 2.5 %.
  const double count = static_cast<double>(samples.size());
  size_t rank = 0;
  double tail = 0;
  for (double below = 0; below < count; ++below) {
    tail += std::exp(std::lgamma(count + 1) - std::lgamma(below + 1) - std::lgamma(count - below + 1) -
                     count * std::log(2));
    if (tail > 0.025) break;
    ++rank;
  }
  if (rank == 0) return std::nullopt;
  return Interval{samples[rank - 1], samples[samples.size() - rank]};
}

std::optional<double> Row::Ratio() const {
  if (!reference || reference->value.median == 0) return std::nullopt;
  return value.median / reference->value.median;
}

void Pairs::Fill(std::string reference_name, Row* row) const {
  row->value = Summarize(values);
  row->reference = Reference{.name = std::move(reference_name), .value = Summarize(references)};
  std::vector<double> ratios;
  for (size_t i = 0; i < values.size(); ++i) {
    ratios.push_back(references[i] == 0 ? 0 : values[i] / references[i]);
  }
  row->pair_interval = MedianInterval(ratios);
  row->pair_ratio = Summarize(std::move(ratios)).median;
}

std::string ToTable(const std::vector<Row>& rows) {
  cli::Table table({"bench", "lane", "metric", "bytes", "value", "unit", "min", "max", "spread", "runs",
                    "reference", "ref value", "ratio", "pairs", "95 %"});
  std::string notes;
  for (const Row& row : rows) {
    table.Add({row.bench, row.lane, row.metric, absl::StrCat(row.bytes), Number(row.value.median), row.unit,
               Number(row.value.min), Number(row.value.max),
               absl::StrFormat("%.0f %%", row.value.Spread() * 100), absl::StrCat(row.value.runs),
               row.reference ? row.reference->name : "-",
               row.reference ? Number(row.reference->value.median) : "-", Optional(row.Ratio()),
               Optional(row.pair_ratio), Text(row.pair_interval)});
    if (!row.note.empty()) {
      absl::StrAppend(&notes, row.bench, " ", row.lane, " ", row.metric, ": ", row.note, "\n");
    }
  }
  return table.ToString() + notes;
}

std::string ToJson(const std::vector<Row>& rows) {
  nlohmann::json all = nlohmann::json::array();
  for (const Row& row : rows) all.push_back(Json(row));
  return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace tensorcast::bench
