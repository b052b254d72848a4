// What arrived at a collector, judged: is each request one coherent trace, are the metrics there, do log
// lines name spans that exist? Pure functions over received data.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "otel/sdk/receiver/received_telemetry.h"

namespace tensorcast::otel_smoke {

struct Received {
  std::vector<otel::ReceivedSpan> spans;
  std::vector<otel::ReceivedMetric> metrics;
  std::vector<otel::ReceivedLog> logs;
};

// One request and what its trace must show.
struct ExpectedTrace {
  std::string what;  // "P2P get to a GPU"
  std::string trace_id;
  std::vector<std::string> spans;  // names
  // Names of spans that link to another span that arrived, which is none of their ancestors: a link says what
  // the tree does not.
  std::vector<std::string> linked;
  int processes = 1;  // at least so many have spans in it
  std::vector<std::pair<std::string, std::string>> below =
      {};  // a span of the one name, below one of the other
  std::vector<std::pair<std::string, std::string>> attributes = {};  // a span of this name has that attribute
};

// What is missing or does not fit together; empty when all is well. One line each.
std::vector<std::string> CheckTrace(const Received& received, const ExpectedTrace& expected);
// `names`: each has at least one series that is not zero.
std::vector<std::string> CheckMetrics(const Received& received, const std::vector<std::string>& names);
// Every line that names a span names one that arrived; each of the traces has a line.
std::vector<std::string> CheckLogs(const Received& received, const std::vector<ExpectedTrace>& traces);

// For people: spans as a tree with the process, start after the root's, duration and links.
std::string DescribeTrace(const Received& received, const ExpectedTrace& expected);
std::string DescribeMetrics(const Received& received, const std::vector<std::string>& names);
std::string DescribeLogs(const Received& received, const std::vector<ExpectedTrace>& traces);

}  // namespace tensorcast::otel_smoke
