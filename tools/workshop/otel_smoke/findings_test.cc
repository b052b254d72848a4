#include "tools/workshop/otel_smoke/findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/time/time.h"

namespace tensorcast::otel_smoke {
namespace {

using otel::ReceivedLog;
using otel::ReceivedMetric;
using otel::ReceivedSpan;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ReceivedSpan Span(const std::string& name, const std::string& id, const std::string& parent,
                  const std::string& process) {
  ReceivedSpan span;
  span.resource = {{"service.name", process}, {"service.instance.id", process}};
  span.name = name;
  span.trace_id = "t";
  span.span_id = id;
  span.parent_span_id = parent;
  span.start = absl::FromUnixSeconds(1);
  span.end = absl::FromUnixSeconds(2);
  return span;
}

Received WholeTrace() {
  Received received;
  received.spans = {Span("Client/Get", "1", "", "client"), Span("P2P/Pull", "2", "1", "daemon"),
                    Span("P2P/Serve", "3", "1", "source")};
  received.spans[1].attributes["tc.lane"] = "tcp";
  received.spans[2].links.push_back({.trace_id = "t", .span_id = "2"});
  return received;
}

const ExpectedTrace kExpected{.what = "get",
                              .trace_id = "t",
                              .spans = {"Client/Get", "P2P/Pull"},
                              .linked = {"P2P/Serve"},
                              .processes = 3,
                              .below = {{"P2P/Pull", "Client/Get"}},
                              .attributes = {{"P2P/Pull", "tc.lane"}}};

TEST(CheckTrace, CompleteTrace_HasNoFindings) { EXPECT_THAT(CheckTrace(WholeTrace(), kExpected), IsEmpty()); }

TEST(CheckTrace, ParentDidNotArrive_SpanIsNamed) {
  Received received = WholeTrace();
  received.spans.push_back(Span("Device/Copy", "4", "99", "daemon"));
  EXPECT_THAT(CheckTrace(received, kExpected), ElementsAre(HasSubstr("Device/Copy of daemon is an orphan")));
}

TEST(CheckTrace, IncompleteTrace_MissingSpansAndLinksAreNamed) {
  Received received = WholeTrace();
  received.spans.resize(1);
  EXPECT_THAT(CheckTrace(received, kExpected),
              ElementsAre(HasSubstr("1 processes"), HasSubstr("no span P2P/Pull"), HasSubstr("is linked"),
                          HasSubstr("no span P2P/Pull is below a span Client/Get"),
                          HasSubstr("no span P2P/Pull carries tc.lane")));
}

TEST(CheckTrace, SecondRootOrEmptyTrace_IsReported) {
  Received received = WholeTrace();
  received.spans.push_back(Span("Client/Get", "4", "", "client"));
  EXPECT_THAT(CheckTrace(received, kExpected), ElementsAre(HasSubstr("2 roots")));
  EXPECT_THAT(CheckTrace({}, {.what = "get", .trace_id = "t"}),
              ElementsAre(HasSubstr("0 roots"), HasSubstr("0 processes")));
}

TEST(CheckTrace, LinkToAncestorOrMissingSpan_DoesNotCount) {
  Received received = WholeTrace();
  received.spans[2].links[0].span_id = "98";
  EXPECT_THAT(CheckTrace(received, kExpected), ElementsAre(HasSubstr("linked to a span that arrived")));
  received.spans[2].links[0].span_id = "1";
  EXPECT_THAT(CheckTrace(received, kExpected), ElementsAre(HasSubstr("is not an ancestor of it")));
}

TEST(CheckTrace, FailedSpan_IsReported) {
  Received received = WholeTrace();
  received.spans[0].error = true;
  received.spans[0].status_message = "pool full";
  EXPECT_THAT(CheckTrace(received, kExpected), ElementsAre(HasSubstr("failed: pool full")));
}

TEST(CheckMetrics, MissingOrZeroMetric_IsReported) {
  Received received;
  received.metrics.resize(3);
  received.metrics[0].name = "a";
  received.metrics[0].value = 1;
  received.metrics[1].name = "b";
  received.metrics[2].name = "h";
  received.metrics[2].count = 1;
  EXPECT_THAT(CheckMetrics(received, {"a", "b", "c", "h"}),
              ElementsAre(HasSubstr("metric b"), HasSubstr("metric c")));
}

TEST(CheckLogs, LogLine_NeedsSpanThatArrived) {
  Received received = WholeTrace();
  EXPECT_THAT(CheckLogs(received, {kExpected}), ElementsAre(HasSubstr("no log line")));
  received.logs.push_back({.body = "ready", .trace_id = "t", .span_id = "2"});
  EXPECT_THAT(CheckLogs(received, {kExpected}), IsEmpty());
  received.logs.push_back({.body = "lost", .trace_id = "t", .span_id = "97"});
  EXPECT_THAT(CheckLogs(received, {kExpected}), ElementsAre(HasSubstr("which did not arrive")));
}

TEST(Describe, DescribeTrace_ShowsTreeLinksEventsAndOrphans) {
  Received received = WholeTrace();
  received.spans[1].events.push_back({"fallback", {{"tc.reason", "source_died"}}});
  received.spans.push_back(Span("Device/Copy", "4", "99", "daemon"));
  const std::string text = DescribeTrace(received, kExpected);
  EXPECT_THAT(text, HasSubstr("Client/Get"));
  EXPECT_THAT(text, HasSubstr("    P2P/Pull"));
  EXPECT_THAT(text, HasSubstr("~> linked to P2P/Pull of daemon\n"));
  EXPECT_THAT(text, HasSubstr("* fallback tc.reason=source_died\n"));
  EXPECT_THAT(text, HasSubstr("Device/Copy"));
}

}  // namespace
}  // namespace tensorcast::otel_smoke
