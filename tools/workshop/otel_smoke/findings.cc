#include "tools/workshop/otel_smoke/findings.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tensorcast::otel_smoke {
namespace {

using otel::ReceivedEvent;
using otel::ReceivedLink;
using otel::ReceivedLog;
using otel::ReceivedMetric;
using otel::ReceivedSpan;
using otel::StringMap;

std::string ValueOf(const StringMap& map, const std::string& key) {
  const auto found = map.find(key);
  return found == map.end() ? "" : found->second;
}

std::vector<const ReceivedSpan*> SpansOf(const Received& received, const std::string& trace_id) {
  std::vector<const ReceivedSpan*> spans;
  for (const ReceivedSpan& span : received.spans) {
    if (span.trace_id == trace_id) spans.push_back(&span);
  }
  std::sort(spans.begin(), spans.end(), [](const auto* a, const auto* b) { return a->start < b->start; });
  return spans;
}

// Null when it did not arrive.
const ReceivedSpan* Find(const Received& received, const std::string& trace_id, const std::string& span_id) {
  const auto found = std::find_if(
      received.spans.begin(), received.spans.end(),
      [&](const ReceivedSpan& span) { return span.trace_id == trace_id && span.span_id == span_id; });
  return found == received.spans.end() ? nullptr : &*found;
}

bool Exists(const Received& received, const std::string& trace_id, const std::string& span_id) {
  return Find(received, trace_id, span_id) != nullptr;
}

// Whether an ancestor of the span in its trace is `like` that.
template <class Like>
bool HasAncestor(const Received& received, const ReceivedSpan& span, Like like) {
  const ReceivedSpan* ancestor = Find(received, span.trace_id, span.parent_span_id);
  // A cycle would be a fault of the sender.
  for (int depth = 0; ancestor != nullptr && depth < 100; ++depth) {
    if (like(*ancestor)) return true;
    ancestor = Find(received, span.trace_id, ancestor->parent_span_id);
  }
  return false;
}

// A link to a span that did not arrive leads nowhere, and one to an ancestor repeats what the tree says.
bool HasLinkThatSaysSomething(const Received& received, const ReceivedSpan& span) {
  return std::any_of(span.links.begin(), span.links.end(), [&](const ReceivedLink& link) {
    const bool known =
        link.trace_id == span.trace_id && HasAncestor(received, span, [&](const ReceivedSpan& ancestor) {
          return ancestor.span_id == link.span_id;
        });
    return Exists(received, link.trace_id, link.span_id) && !known;
  });
}

std::string Instance(const StringMap& resource) { return ValueOf(resource, "service.instance.id"); }

// "tensorcast-daemon node-0": the node's name where there is one.
std::string ProcessName(const StringMap& resource) {
  const std::string node = ValueOf(resource, "tc.node.name");
  return absl::StrCat(ValueOf(resource, "service.name"), node.empty() ? "" : " ", node);
}

double Milliseconds(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

std::string LinkedSpan(const Received& received, const ReceivedLink& link) {
  const ReceivedSpan* span = Find(received, link.trace_id, link.span_id);
  if (span == nullptr) return absl::StrCat("span ", link.span_id, ", which did not arrive");
  return absl::StrCat(span->name, " of ", ProcessName(span->resource));
}

std::string Text(const StringMap& pairs) {
  std::string text;
  for (const auto& [key, value] : pairs) absl::StrAppend(&text, text.empty() ? "" : ",", key, "=", value);
  return text;
}

// An annotation in braces says what is counted, and so does the metric's name.
std::string UnitText(const std::string& unit) {
  return unit == "1" || unit.starts_with('{') ? "" : " " + unit;
}

void DescribeSpan(const Received& received, const std::vector<const ReceivedSpan*>& spans,
                  const ReceivedSpan& span, absl::Time origin, int depth, std::string& out) {
  absl::StrAppendFormat(&out, "  %-54s %-28s %9.2f %9.2f%s\n",
                        absl::StrCat(std::string(2 * depth, ' '), span.name), ProcessName(span.resource),
                        Milliseconds(span.start - origin), Milliseconds(span.end - span.start),
                        span.error ? "  ERROR " + span.status_message : "");
  const std::string indent(2 * depth + 4, ' ');
  for (const ReceivedLink& link : span.links) {
    absl::StrAppend(&out, indent, "~> linked to ", LinkedSpan(received, link), "\n");
  }
  for (const ReceivedEvent& event : span.events) {
    absl::StrAppend(&out, indent, "* ", event.name, " ", Text(event.attributes), "\n");
  }
  if (depth > 30) return;  // a cycle would be a fault of the sender
  for (const ReceivedSpan* child : spans) {
    if (child->parent_span_id == span.span_id) DescribeSpan(received, spans, *child, origin, depth + 1, out);
  }
}

}  // namespace

std::vector<std::string> CheckTrace(const Received& received, const ExpectedTrace& expected) {
  std::vector<std::string> problems;
  const auto problem = [&](auto&&... parts) {
    problems.push_back(absl::StrCat(expected.what, ": ", parts...));
  };
  const std::vector<const ReceivedSpan*> spans = SpansOf(received, expected.trace_id);
  std::set<std::string> names, instances;
  int roots = 0;
  for (const ReceivedSpan* span : spans) {
    names.insert(span->name);
    instances.insert(Instance(span->resource));
    if (span->parent_span_id.empty()) {
      ++roots;
    } else if (!Exists(received, expected.trace_id, span->parent_span_id)) {
      problem("span ", span->name, " of ", ProcessName(span->resource), " is an orphan: its parent ",
              span->parent_span_id, " did not arrive");
    }
    if (span->end < span->start) problem("span ", span->name, " ends before it starts");
    if (span->error) problem("span ", span->name, " failed: ", span->status_message);
  }
  if (roots != 1) problem("the trace has ", roots, " roots, not 1");
  if (static_cast<int>(instances.size()) < expected.processes) {
    problem("spans of ", instances.size(), " processes, not of ", expected.processes);
  }
  for (const std::string& name : expected.spans) {
    if (!names.contains(name)) problem("there is no span ", name);
  }
  for (const std::string& name : expected.linked) {
    const bool linked = std::any_of(spans.begin(), spans.end(), [&](const ReceivedSpan* span) {
      return span->name == name && HasLinkThatSaysSomething(received, *span);
    });
    if (!linked) problem("no span ", name, " is linked to a span that arrived and is not an ancestor of it");
  }
  for (const auto& [child, parent] : expected.below) {
    const bool below =
        std::any_of(spans.begin(), spans.end(), [&, &of = child, &in = parent](const auto* span) {
          return span->name == of && HasAncestor(received, *span, [&](const ReceivedSpan& ancestor) {
                   return ancestor.name == in;
                 });
        });
    if (!below) problem("no span ", child, " is below a span ", parent);
  }
  for (const auto& [name, key] : expected.attributes) {
    const bool has = std::any_of(spans.begin(), spans.end(), [&, &of = name, &what = key](const auto* span) {
      return span->name == of && !ValueOf(span->attributes, what).empty();
    });
    if (!has) problem("no span ", name, " carries ", key);
  }
  return problems;
}

std::vector<std::string> CheckMetrics(const Received& received, const std::vector<std::string>& names) {
  std::vector<std::string> problems;
  for (const std::string& name : names) {
    const bool there =
        std::any_of(received.metrics.begin(), received.metrics.end(), [&](const ReceivedMetric& metric) {
          return metric.name == name && (metric.value != 0 || metric.count != 0);
        });
    if (!there) problems.push_back(absl::StrCat("metric ", name, ": no value that is not zero arrived"));
  }
  return problems;
}

std::vector<std::string> CheckLogs(const Received& received, const std::vector<ExpectedTrace>& traces) {
  std::vector<std::string> problems;
  for (const ReceivedLog& log : received.logs) {
    if (!log.span_id.empty() && !Exists(received, log.trace_id, log.span_id)) {
      problems.push_back(
          absl::StrCat("log line \"", log.body, "\" names span ", log.span_id, ", which did not arrive"));
    }
  }
  for (const ExpectedTrace& trace : traces) {
    const bool logged = std::any_of(received.logs.begin(), received.logs.end(), [&](const ReceivedLog& log) {
      return log.trace_id == trace.trace_id && !log.span_id.empty();
    });
    if (!logged) problems.push_back(absl::StrCat(trace.what, ": no log line names its trace"));
  }
  return problems;
}

std::string DescribeTrace(const Received& received, const ExpectedTrace& expected) {
  const std::vector<const ReceivedSpan*> spans = SpansOf(received, expected.trace_id);
  std::string out = absl::StrFormat("%s, trace %s\n  %-54s %-28s %9s %9s\n", expected.what, expected.trace_id,
                                    "span", "process", "at ms", "took ms");
  for (const ReceivedSpan* span : spans) {
    if (!Exists(received, expected.trace_id, span->parent_span_id)) {
      DescribeSpan(received, spans, *span, spans.front()->start, 0, out);
    }
  }
  return out;
}

std::string DescribeMetrics(const Received& received, const std::vector<std::string>& names) {
  std::map<std::string, std::string> lines;
  const std::set<std::string> wanted(names.begin(), names.end());
  for (const ReceivedMetric& metric : received.metrics) {
    if (!wanted.contains(metric.name) || (metric.value == 0 && metric.count == 0)) continue;
    const std::string series =
        absl::StrCat(metric.name, " ", Text(metric.labels), " ", ProcessName(metric.resource));
    const std::string count = metric.count > 0 ? absl::StrCat(" in ", metric.count) : "";
    lines[series] = absl::StrFormat("  %-46s %-52s %-28s %.6g%s%s\n", metric.name, Text(metric.labels),
                                    ProcessName(metric.resource), metric.value, UnitText(metric.unit), count);
  }
  std::string out;
  for (const auto& [series, line] : lines) out += line;
  return out;
}

std::string DescribeLogs(const Received& received, const std::vector<ExpectedTrace>& traces) {
  std::string out;
  for (const ExpectedTrace& trace : traces) {
    for (const ReceivedLog& log : received.logs) {
      if (log.trace_id != trace.trace_id) continue;
      absl::StrAppendFormat(&out, "  %-24s span %s  %s\n", trace.what, log.span_id, log.body);
    }
  }
  return out;
}

}  // namespace tensorcast::otel_smoke
