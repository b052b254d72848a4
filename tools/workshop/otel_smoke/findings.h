// Checks the telemetry that arrived at a collector: each request is one coherent trace, the metrics exist,
// and log lines name spans that exist. Pure functions over received data.
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
  // Names of spans that link to another arrived span which is not one of their ancestors: such a link adds to
  // the tree.
  std::vector<std::string> linked;
  int processes = 1;  // min number of processes with spans in it
  std::vector<std::pair<std::string, std::string>> below =
      {};  // a span with the first name is below one with the second
  std::vector<std::pair<std::string, std::string>> attributes = {};  // a span with this name has that
                                                                     // attribute
};

// What is missing or inconsistent, one line each; empty when all is well.
std::vector<std::string> CheckTrace(const Received& received, const ExpectedTrace& expected);
// `names`: each must have at least one series that is not zero.
std::vector<std::string> CheckMetrics(const Received& received, const std::vector<std::string>& names);
// Every line that names a span must name one that arrived; each trace must have a line.
std::vector<std::string> CheckLogs(const Received& received, const std::vector<ExpectedTrace>& traces);

// For people: the spans as a tree, with the process, the start after the root's, the duration and the links.
std::string DescribeTrace(const Received& received, const ExpectedTrace& expected);
std::string DescribeMetrics(const Received& received, const std::vector<std::string>& names);
std::string DescribeLogs(const Received& received, const std::vector<ExpectedTrace>& traces);

}  // namespace tensorcast::otel_smoke
