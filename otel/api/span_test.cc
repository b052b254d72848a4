#include "otel/api/span.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "base/trace_context.h"
#include "base/upkeep.h"
#include "otel/api/testing/recorded_telemetry.h"
#include "otel/api/trace_macros.h"

namespace tensorcast::otel::span_test {
namespace {

using ::testing::ElementsAre;

// Writes down what it is told, one line a call.
class NotingSink final : public TraceSink {
 public:
  std::unique_ptr<SpanRecord> Start(const SpanStart& start, TraceContext& context) override;
  TraceContext Reserve(const TraceContext& parent) override {
    TraceContext context = parent.IsValid() ? parent.NewChild() : TraceContext::NewRoot();
    context.trace_state.clear();
    return context;
  }

  std::vector<std::string> lines;
  std::vector<TraceContext> parents;
  bool record = true;
};

class NotingRecord final : public SpanRecord {
 public:
  NotingRecord(NotingSink& sink, std::string_view name) : sink_(sink), name_(name) {}
  void SetAttribute(std::string_view key, const AttributeValue& value) override {
    sink_.lines.push_back(absl::StrCat(name_, ": ", key, "=", testing::TextOf(value)));
  }
  void AddEvent(std::string_view name, std::span<const Attribute> attributes, SpanTime) override {
    std::string line = absl::StrCat(name_, ": event ", name);
    for (const Attribute& a : attributes) {
      absl::StrAppend(&line, " ", a.key.name(), "=", testing::TextOf(a.value));
    }
    sink_.lines.push_back(line);
  }
  void AddLink(const SpanLink& link) override {
    sink_.lines.push_back(absl::StrCat(name_, ": link ", link.context.SpanIdHex()));
  }
  void SetError(std::string_view type, std::string_view message) override {
    sink_.lines.push_back(absl::StrCat(name_, ": error ", type, " ", message));
  }
  void End(SpanTime) override { sink_.lines.push_back(absl::StrCat(name_, ": end")); }

 private:
  NotingSink& sink_;
  std::string name_;
};

std::unique_ptr<SpanRecord> NotingSink::Start(const SpanStart& start, TraceContext& context) {
  parents.push_back(*start.parent);
  if (!context.IsValid()) context = Reserve(*start.parent);
  if (!record) return nullptr;
  std::string line = absl::StrCat(start.name, ": start");
  for (const Attribute& a : start.attributes) {
    absl::StrAppend(&line, " ", a.key.name(), "=", testing::TextOf(a.value));
  }
  lines.push_back(line);
  return std::make_unique<NotingRecord>(*this, start.name);
}

class SpanTest : public ::testing::Test {
 protected:
  SpanTest() { InstallTraceSink(SinkKind::kTelemetry, &sink_); }
  ~SpanTest() override {
    InstallTraceSink(SinkKind::kTelemetry, nullptr);
    AllowAllAttributes(false);
  }

  NotingSink sink_;
};

TEST_F(SpanTest, UpkeepSpan_IsRecordedWhenItFails) {
  const RequestContext upkeep = UpkeepContext(absl::Seconds(1));
  {
    Span span("A/Sweep", upkeep, {{attr::kLane, "tcp"}});
    EXPECT_EQ(span.context(), upkeep.trace) << "what it causes is upkeep, too";
    Span("A/Child", span.context()).End();
  }
  EXPECT_THAT(sink_.lines, ElementsAre());
  {
    std::string text = "tcp";
    Span span("A/Sweep", upkeep, {{attr::kLane, text}});
    text = "udp";
    span.SetAttribute(attr::kSizeBytes, 7);
    span.AddEvent("retry", {{attr::kReason, std::string("UNAVAILABLE")}});
    Span("A/Child", span.context()).End();
    span.SetError(absl::InternalError("broken"));
  }
  EXPECT_THAT(sink_.lines, ElementsAre("A/Sweep: start", "A/Sweep: tc.lane=tcp", "A/Sweep: tc.size.bytes=7",
                                       "A/Sweep: event retry tc.reason=UNAVAILABLE",
                                       "A/Sweep: error INTERNAL broken", "A/Sweep: end"));
  ASSERT_EQ(sink_.parents.size(), 1u);
  EXPECT_TRUE(sink_.parents[0].IsUnstarted()) << "a root";
  EXPECT_EQ(sink_.parents[0].trace_id, upkeep.trace.trace_id);
}

TEST_F(SpanTest, UpkeepSpan_IsRecordedWhenItTakesLong) {
  const RequestContext upkeep = UpkeepContext(absl::Seconds(1));
  const SteadyTime now = SteadyNow();
  Span("A/Short", upkeep, {}, {.start = now - absl::Milliseconds(900)}).End(now);
  Span("A/Long", upkeep, {}, {.start = now - absl::Milliseconds(1100)}).End(now);
  EXPECT_THAT(sink_.lines, ElementsAre("A/Long: start", "A/Long: end"));
}

TEST(SpanWithoutASink, SpanWithoutSink_DoesNothingAndHasNoContext) {
  RequestContext context = RequestContext::Background();
  const TraceContext before = context.trace;
  Span span("A/B", context, {{attr::kLane, "ucx"}});
  span.AttachTo(&context);
  span.SetAttribute(attr::kSizeBytes, 1);
  span.SetError(absl::InternalError("x"));
  Scope scope(span);
  EXPECT_FALSE(span.recording());
  EXPECT_FALSE(span.context().IsValid());
  EXPECT_EQ(context.trace, before);
  EXPECT_EQ(CurrentTraceId(), "");
  EXPECT_FALSE(IsTelemetryEnabled());
}

TEST_F(SpanTest, Span_ReportsItsEventsToSinkInOrder) {
  const TraceContext parent = TraceContext::NewRoot();
  const TraceContext other = TraceContext::NewRoot();
  {
    Span span("A/B", parent, {{attr::kLane, "ucx"}, {attr::kShared, true}});
    span.SetAttribute(attr::kSizeBytes, uint64_t{5});
    span.AddEvent("refetch", {{attr::kReason, "timeout"}});
    span.AddLink(other);
    span.SetError(absl::UnavailableError("gone"));
    span.SetError(absl::OkStatus());
  }
  EXPECT_THAT(sink_.lines, ElementsAre("A/B: start tc.lane=ucx tc.shared=true", "A/B: tc.size.bytes=5",
                                       "A/B: event refetch tc.reason=timeout",
                                       absl::StrCat("A/B: link ", other.SpanIdHex()),
                                       "A/B: error UNAVAILABLE gone", "A/B: end"));
  EXPECT_EQ(sink_.parents[0], parent);
}

TEST_F(SpanTest, SpanEndedOrMovedTwice_EndsOnce) {
  {
    Span span("A/B");
    Span moved = std::move(span);
    moved.End();
    moved.End();
    moved.SetAttribute(attr::kLane, "late");
  }
  EXPECT_THAT(sink_.lines, ElementsAre("A/B: start", "A/B: end"));
}

TEST_F(SpanTest, AssignmentToSpan_EndsThePreviousOne) {
  Span span("A/First");
  span = Span("A/Second");
  EXPECT_THAT(sink_.lines, ElementsAre("A/First: start", "A/Second: start", "A/First: end"));
}

TEST_F(SpanTest, SpanEndedAfterSinkRemoval_EndsAtItsSink) {
  Span span("A/B");
  InstallTraceSink(SinkKind::kTelemetry, nullptr);
  span.End();
  EXPECT_THAT(sink_.lines, ElementsAre("A/B: start", "A/B: end"));
}

TEST_F(SpanTest, UnrecordedSpan_PropagatesItsContext) {
  sink_.record = false;
  RequestContext context = RequestContext::Background();
  Span span("A/B", context);
  span.SetAttribute(attr::kLane, "ucx");
  span.AttachTo(&context);
  EXPECT_FALSE(span.recording());
  EXPECT_EQ(context.trace, span.context());
  EXPECT_TRUE(sink_.lines.empty());
}

TEST_F(SpanTest, AttributeNotOnList_IsLeftOut) {
  Span span("A/B", {{"prompt", "secret"}, {"tc.lane", "ucx"}});
  span.SetAttribute("user.name", "me");
  span.AddEvent("e", {{"prompt", "secret"}});
  EXPECT_THAT(sink_.lines, ElementsAre("A/B: start tc.lane=ucx", "A/B: event e"));
}

TEST_F(SpanTest, AttributeList_CanBeExtendedOrSwitchedOff) {
  AllowAttribute("app.step");
  Span span("A/B");
  span.SetAttribute("app.step", 7);
  span.SetAttribute("other", 8);
  AllowAllAttributes(true);
  span.SetAttribute("other", 9);
  EXPECT_THAT(sink_.lines, ElementsAre("A/B: start", "A/B: app.step=7", "A/B: other=9"));
}

TEST_F(SpanTest, Scope_MakesSpanCurrentUntilItsEnd) {
  Span outer("A/Outer");
  {
    Scope scope(outer);
    EXPECT_EQ(CurrentTraceId(), outer.context().TraceIdHex());
    {
      ScopedSpan inner("A/Inner");
      EXPECT_EQ(sink_.parents.back(), outer.context());
      EXPECT_EQ(CurrentSpan(), &inner.span());
      std::thread([] { EXPECT_EQ(CurrentTraceId(), "") << "scopes are the thread's own"; }).join();
    }
    EXPECT_EQ(CurrentSpan(), &outer);
  }
  EXPECT_EQ(CurrentTraceId(), "");
}

TEST_F(SpanTest, TraceMacros_EndWithTheirBlock) {
  {
    SC_TRACE_SCOPE("A/Outer");
    SC_TRACE_ATTRIBUTE(attr::kLane, "ucx");
    {
      SC_TRACE_SCOPE("A/Inner");
      SC_TRACE_EVENT("hit");
      SC_TRACE_EVENT("miss", {attr::kReason, "cold"}, {attr::kAttempt, 2});
    }
    SC_TRACE_ERROR(absl::NotFoundError("none"));
  }
  EXPECT_THAT(sink_.lines,
              ElementsAre("A/Outer: start", "A/Outer: tc.lane=ucx", "A/Inner: start", "A/Inner: event hit",
                          "A/Inner: event miss tc.reason=cold tc.attempt=2", "A/Inner: end",
                          "A/Outer: error NOT_FOUND none", "A/Outer: end"));
}

TEST(SpanWithoutASinkMacros, TraceMacrosWithoutSink_DoNotEvaluateArguments) {
  int evaluated = 0;
  auto count = [&] { return ++evaluated; };
  SC_TRACE_SCOPE("A/B");
  SC_TRACE_ATTRIBUTE(attr::kChunks, count());
  SC_TRACE_EVENT("e", {attr::kChunks, count()});
  SC_TRACE_ERROR(absl::InternalError(absl::StrCat(count())));
  EXPECT_EQ(evaluated, 0);
}

TEST_F(SpanTest, TraceMacroOfRequest_HasRequestAsParent) {
  const RequestContext context = RequestContext::Background();
  SC_TRACE_SCOPE_OF(context, "A/B");
  EXPECT_EQ(sink_.parents.back(), context.trace);
}

TEST_F(SpanTest, InSpan_ReturnsResultAndRecordsError) {
  EXPECT_EQ(InSpan("A/Seven", [] { return 7; }), 7);
  bool ran = false;
  InSpan("A/Void", [&](Span& span) { ran = span.recording(); });
  EXPECT_TRUE(ran);
  EXPECT_EQ(InSpan("A/Status", [] { return absl::AbortedError("no"); }).code(), absl::StatusCode::kAborted);
  const absl::StatusOr<int> result =
      InSpan("A/Or", []() -> absl::StatusOr<int> { return absl::DataLossError("bad"); });
  EXPECT_FALSE(result.ok());
  EXPECT_THAT(sink_.lines, ElementsAre("A/Seven: start", "A/Seven: end", "A/Void: start", "A/Void: end",
                                       "A/Status: start", "A/Status: error ABORTED no", "A/Status: end",
                                       "A/Or: start", "A/Or: error DATA_LOSS bad", "A/Or: end"));
}

TEST_F(SpanTest, TracedCallable_IsChildOfSpanAtItsCreation) {
  ScopedSpan outer("A/Outer");
  auto twice = Traced("A/Work", [](int x) { return 2 * x; });
  std::thread([&] { EXPECT_EQ(twice(4), 8); }).join();
  EXPECT_EQ(sink_.parents.back(), outer->context());
}

TEST(TracePropagation, TraceInStringMap_RoundTrips) {
  const auto context = TraceContext::FromTraceparent(
      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=value");
  std::map<std::string, std::string> carrier = {{"other", "kept"}};
  InjectTrace(*context, carrier);
  EXPECT_EQ(ExtractTrace(carrier), *context);
  EXPECT_EQ(ExtractTrace({{"Traceparent", carrier["traceparent"]}}).trace_id, context->trace_id);
  InjectTrace(TraceContext(), carrier);
  EXPECT_EQ(carrier, (std::map<std::string, std::string>{{"other", "kept"}}));
  EXPECT_FALSE(ExtractTrace({{"traceparent", "00-nonsense"}}).IsValid());
}

}  // namespace
}  // namespace tensorcast::otel::span_test
