#include "otel/api/flight_recorder.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/log/log.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/upkeep.h"
#include "gtest/gtest.h"
#include "otel/api/span.h"
#include "otel/api/testing/recorded_telemetry.h"

namespace tensorcast::otel::flight_recorder_test {

constexpr size_t kAll = size_t{64} << 20;

// A span of a caller elsewhere.
TraceContext Begun(bool sampled) {
  TraceContext context = TraceContext::NewRoot();
  context.trace_state.clear();
  context.flags = sampled ? TraceContext::kSampled : 0;
  return context;
}

RecordedSlice ReadAll() { return ReadRecorder(std::nullopt, kAll).value_or(RecordedSlice()); }
RecordedSlice ReadOf(const TraceContext& trace) {
  return ReadRecorder(trace.trace_id, kAll).value_or(RecordedSlice());
}

// Telemetry that samples nothing.
class UnsampledSink final : public TraceSink {
 public:
  UnsampledSink() { InstallTraceSink(SinkKind::kTelemetry, this); }
  ~UnsampledSink() override { InstallTraceSink(SinkKind::kTelemetry, nullptr); }
  std::unique_ptr<SpanRecord> Start(const SpanStart& start, TraceContext& context) override {
    if (!context.IsValid()) context = *start.parent;
    return nullptr;
  }
  TraceContext Reserve(const TraceContext& parent) override { return parent; }
};

TEST(FlightRecorder, NoRecorder_ReadsNothing) { EXPECT_FALSE(ReadRecorder(std::nullopt, kAll).has_value()); }

TEST(FlightRecorder, TransferSpan_IsKeptWithWhatItSays) {
  const FlightRecorder recorder;
  const TraceContext parent = Begun(false);
  const TraceContext linked = Begun(false);
  {
    Span span("P2P/Pull", parent, {{attr::kLane, std::string("tcp")}, {attr::kSizeBytes, 7}});
    span.AddEvent("refetch", {{attr::kReason, "timeout"}});
    span.AddLink(linked);
    span.SetError(absl::UnavailableError("gone"));
  }
  Span("GlobalStore/ResolveKey", parent).End();
  const RecordedSlice slice = ReadAll();
  ASSERT_EQ(slice.spans.size(), 1) << "not of every call";
  const KeptSpan& span = slice.spans[0];
  EXPECT_EQ(span.name, "P2P/Pull");
  EXPECT_EQ(span.parent, parent);
  EXPECT_EQ(span.context.trace_id, parent.trace_id);
  EXPECT_NE(span.context.span_id, parent.span_id);
  ASSERT_EQ(span.attributes.size(), 2);
  EXPECT_EQ(span.attributes[0].value().as_string(), "tcp");
  ASSERT_EQ(span.events.size(), 1);
  EXPECT_EQ(span.events[0].name, "refetch");
  ASSERT_EQ(span.links.size(), 1);
  EXPECT_EQ(span.links[0].trace_id, linked.trace_id);
  EXPECT_EQ(span.error->first, "UNAVAILABLE");
}

TEST(FlightRecorder, TelemetryOff_GivesIdsButLeavesTraceUnstarted) {
  const FlightRecorder recorder;
  const RequestContext context = RequestContext::Background();
  Span get("Client/Get", context);
  EXPECT_EQ(get.context().trace_id, context.trace.trace_id);
  EXPECT_TRUE(get.context().IsUnstarted()) << "another process decides on sampling as without a recorder";
  Span call("GlobalStore/ResolveKey", get.context());
  EXPECT_EQ(call.context(), get.context()) << "not kept: what is below it belongs to the get";
  Span pull("P2P/Pull", call.context());
  pull.End();
  get.End();
  const RecordedSlice slice = ReadOf(context.trace);
  ASSERT_EQ(slice.spans.size(), 2);
  EXPECT_EQ(slice.spans[0].parent.span_id, slice.spans[1].context.span_id);
}

TEST(FlightRecorder, UnsampledTrace_IsKeptAndStaysUnsampled) {
  const UnsampledSink telemetry;
  const FlightRecorder recorder;
  const TraceContext parent = Begun(false);
  const TraceContext reserved = ReserveSpan(parent);
  EXPECT_NE(reserved.span_id, parent.span_id);
  Span ingest("StoreEngine/P2PIngest", parent, {}, {.reserved = &reserved});
  EXPECT_EQ(ingest.context(), reserved);
  EXPECT_FALSE(ingest.context().IsSampled());
  ingest.End();
  ASSERT_EQ(ReadOf(parent).spans.size(), 1);
  EXPECT_FALSE(ReadOf(parent).spans[0].exported);
}

TEST(FlightRecorder, SampledTrace_KeepsIdsOfTelemetry) {
  const testing::RecordedTelemetry telemetry;
  const FlightRecorder recorder;
  const TraceContext parent = Begun(true);
  Span pull("P2P/Pull", parent);
  const TraceContext context = pull.context();
  pull.End();
  EXPECT_EQ(telemetry.AwaitSpan("P2P/Pull").context, context);
  ASSERT_EQ(ReadOf(parent).spans.size(), 1);
  EXPECT_EQ(ReadOf(parent).spans[0].context, context);
  EXPECT_TRUE(ReadOf(parent).spans[0].exported);
}

TEST(FlightRecorder, OldestSpans_GoWhenMemoryIsFull) {
  constexpr size_t kBytes = 64 << 10;
  const FlightRecorder recorder({.max_bytes = kBytes});
  const TraceContext parent = Begun(false);
  for (int i = 0; i < 1000; ++i) Span("P2P/Pull", parent, {{attr::kChunks, i}}).End();
  const RecordedSlice slice = ReadAll();
  ASSERT_FALSE(slice.spans.empty());
  size_t bytes = 0;
  for (const KeptSpan& span : slice.spans) bytes += span.bytes();
  EXPECT_LE(bytes, kBytes / 2);
  EXPECT_GT(bytes, kBytes / 4);
  EXPECT_EQ(slice.spans.back().attributes[0].value().as_int(), 999);
}

TEST(FlightRecorder, LogLine_IsKeptWithItsTrace) {
  const FlightRecorder recorder;
  const TraceContext trace = Begun(false);
  {
    const Scope scope(trace);
    LOG(INFO) << "in the trace";
  }
  LOG(WARNING) << "outside";
  const RecordedSlice all = ReadAll();
  ASSERT_EQ(all.lines.size(), 2);
  EXPECT_EQ(all.lines[1].message, "outside");
  EXPECT_EQ(all.lines[1].severity, absl::LogSeverity::kWarning);
  const RecordedSlice of_trace = ReadOf(trace);
  ASSERT_EQ(of_trace.lines.size(), 1);
  EXPECT_EQ(of_trace.lines[0].message, "in the trace");
}

TEST(FlightRecorder, SmallSlice_HasNewestAndCountsRest) {
  const FlightRecorder recorder;
  const TraceContext parent = Begun(false);
  for (int i = 0; i < 10; ++i) Span("P2P/Pull", parent, {{attr::kChunks, i}}).End();
  const size_t of_one = ReadAll().spans[0].bytes();
  const std::optional<RecordedSlice> slice = ReadRecorder(parent.trace_id, 3 * of_one);
  ASSERT_EQ(slice->spans.size(), 3);
  EXPECT_EQ(slice->spans[2].attributes[0].value().as_int(), 9);
  EXPECT_EQ(slice->left_out, 7);
}

TEST(FlightRecorder, Export_SendsUnsampledTraceOnce) {
  const TraceContext parent = Begun(false);
  std::vector<KeptSpan> spans;
  {
    const FlightRecorder recorder;
    Span call("StoreDaemon/MaterializeReplica", parent, {}, {.kind = SpanKind::kServer});
    Span pull("P2P/Pull", call.context(), {{attr::kLane, "tcp"}});
    pull.SetError(absl::UnavailableError("gone"));
    pull.End();
    call.End();
    spans = ReadOf(parent).spans;
  }
  const testing::RecordedTelemetry telemetry;
  EXPECT_EQ(ExportSpans(spans), 2);
  const testing::RecordedSpan pull = telemetry.AwaitSpan("P2P/Pull");
  const testing::RecordedSpan call = telemetry.AwaitSpan("StoreDaemon/MaterializeReplica");
  EXPECT_TRUE(pull.context.IsSampled());
  EXPECT_EQ(pull.context.trace_id, parent.trace_id);
  EXPECT_EQ(pull.parent.span_id, call.context.span_id);
  EXPECT_EQ(pull.attribute(attr::kLane), "tcp");
  EXPECT_EQ(pull.error, "UNAVAILABLE");
  EXPECT_FALSE(call.parent.IsValid()) << "nothing exported the caller's span";
  for (KeptSpan& span : spans) span.exported = true;
  EXPECT_EQ(ExportSpans(spans), 0);
}

TEST(FlightRecorder, UpkeepSpan_IsKeptWhenItFails) {
  const FlightRecorder recorder;
  const RequestContext upkeep = UpkeepContext(absl::Seconds(1));
  Span("StoreEngine/Evict", upkeep).End();
  EXPECT_TRUE(ReadAll().spans.empty());
  {
    Span span("StoreEngine/Evict", upkeep);
    span.SetError(absl::InternalError("broken"));
  }
  ASSERT_EQ(ReadAll().spans.size(), 1);
  EXPECT_EQ(ReadAll().spans[0].context.trace_id, upkeep.trace.trace_id);
}

TEST(FlightRecorder, EndedRecorder_ForgetsAndKeepsNothing) {
  const TraceContext parent = Begun(false);
  std::optional<FlightRecorder> recorder(std::in_place);
  Span late("P2P/Pull", parent);
  recorder.reset();
  late.End();
  EXPECT_FALSE(ReadRecorder(std::nullopt, kAll).has_value());
  EXPECT_FALSE(IsTracing());
}

}  // namespace tensorcast::otel::flight_recorder_test
