#include "daemon/telemetry/trace_export.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "otel/api/span.h"
#include "otel/api/testing/recorded_telemetry.h"

namespace tensorcast::daemon::trace_export_test {

using otel::testing::RecordedSpan;
using otel::testing::RecordedTelemetry;
using ::testing::ElementsAre;

// A trace that a client began and does not sample.
TraceContext Unsampled() {
  TraceContext context = TraceContext::NewRoot();
  context.trace_state.clear();
  context.flags = 0;
  return context;
}

otel::KeptSpan SpanOf(const char* name, const TraceContext& parent) {
  otel::KeptSpan span;
  span.name = name;
  span.parent = parent;
  span.context = parent.NewChild();
  span.start = span.end = std::chrono::system_clock::now();
  return span;
}

TransferReport Report(const TraceContext& trace, const absl::Status& status, absl::Duration took) {
  TransferReport report;
  report.trace = trace;
  report.status = status;
  report.queued = SteadyTime() + absl::Seconds(100);
  report.end = report.queued + took;
  report.sources = {{.source = {.type = SourceType::kRemote, .lane = "tcp", .name = "b", .grant_id = "g"}}};
  return report;
}

class TraceExportTest : public ::testing::Test {
 protected:
  TraceExportTest() {
    // Recorded while no telemetry is on: as if it were on and had not sampled the trace.
    otel::Span("StoreEngine/P2PIngest", trace_).End();
    telemetry_ = std::make_unique<RecordedTelemetry>();
  }

  TraceExporter::Options Options() {
    TraceExporter::Options options;
    options.settle = options.pause = absl::ZeroDuration();
    options.ask_store = [this](const RequestContext&, const otel::TraceId& asked) -> TraceExporter::Answer {
      EXPECT_EQ(asked, trace_.trace_id);
      otel::RecordedSlice slice;
      slice.spans = {SpanOf("GlobalStore/RequestReplicaTransport", trace_)};
      return slice;
    };
    options.ask_node = [this](const RequestContext&, const std::string& node, const otel::TraceId&) {
      asked_.push_back(node);
      otel::RecordedSlice slice;
      slice.spans = {SpanOf("P2P/Serve", trace_), SpanOf("P2P/Serve", Unsampled())};
      return TraceExporter::Answer(slice);
    };
    return options;
  }

  const TraceContext trace_ = Unsampled();
  std::vector<std::string> asked_;  // by the exporter's thread; read when it has ended
  const otel::FlightRecorder recorder_;
  std::unique_ptr<RecordedTelemetry> telemetry_;
};

TEST_F(TraceExportTest, FailedTransfer_ExportsSlicesOfAllAsOneTrace) {
  {
    TraceExporter exporter(Options());
    exporter.OnTransfer(Report(trace_, absl::UnavailableError("no source"), absl::Seconds(1)));
    const RecordedSpan served = telemetry_->AwaitSpan("P2P/Serve");
    EXPECT_EQ(served.context.trace_id, trace_.trace_id);
    EXPECT_TRUE(served.context.IsSampled());
    EXPECT_EQ(served.attribute(otel::attr::kNodeName), "b");
  }
  EXPECT_EQ(telemetry_->AwaitSpans("GlobalStore/RequestReplicaTransport", 1).size(), 1);
  EXPECT_EQ(telemetry_->AwaitSpans("StoreEngine/P2PIngest", 1).size(), 1);
  EXPECT_EQ(telemetry_->spans().size(), 3) << "none of another trace";
  EXPECT_THAT(asked_, ElementsAre("b"));
}

TEST_F(TraceExportTest, SlowTransfer_IsExported) {
  TraceExporter exporter(Options());
  exporter.OnTransfer(Report(trace_, absl::OkStatus(), absl::Seconds(31)));
  EXPECT_EQ(telemetry_->AwaitSpan("StoreEngine/P2PIngest").context.trace_id, trace_.trace_id);
}

TEST_F(TraceExportTest, QuickOrCancelledTransfer_IsNotExported) {
  {
    TraceExporter exporter(Options());
    exporter.OnTransfer(Report(Unsampled(), absl::OkStatus(), absl::Seconds(29)));
    exporter.OnTransfer(Report(Unsampled(), absl::CancelledError("the client went"), absl::Seconds(1)));
    exporter.OnTransfer(Report(trace_, absl::UnavailableError("no source"), absl::Seconds(1)));
    telemetry_->AwaitSpan("P2P/Serve");
  }
  EXPECT_EQ(telemetry_->spans().size(), 3);
  EXPECT_THAT(asked_, ElementsAre("b")) << "for the one that failed, which came last";
}

TEST_F(TraceExportTest, SampledTrace_IsNotExportedAgain) {
  TraceContext sampled = Unsampled();
  sampled.flags = TraceContext::kSampled;
  otel::Span("StoreEngine/DiskIngest", sampled).End();
  {
    TraceExporter exporter(Options());
    exporter.OnTransfer(Report(sampled, absl::UnavailableError("no source"), absl::Seconds(1)));
    exporter.OnTransfer(Report(trace_, absl::UnavailableError("no source"), absl::Seconds(1)));
    telemetry_->AwaitSpan("P2P/Serve");
  }
  EXPECT_EQ(telemetry_->AwaitSpans("StoreEngine/DiskIngest", 1).size(), 1);
  EXPECT_THAT(asked_, ElementsAre("b")) << "for the other trace, which came last";
}

TEST_F(TraceExportTest, TraceOfSeveralTransfers_ExportsEachSpanOnce) {
  TraceExporter exporter(Options());
  exporter.OnTransfer(Report(trace_, absl::UnavailableError("no source"), absl::Seconds(1)));
  telemetry_->AwaitSpan("P2P/Serve");
  exporter.OnTransfer(Report(trace_, absl::UnavailableError("no source"), absl::Seconds(1)));
  ASSERT_EQ(telemetry_->AwaitSpans("P2P/Serve", 2).size(), 2) << "the source made another one meanwhile";
  EXPECT_EQ(telemetry_->AwaitSpans("StoreEngine/P2PIngest", 1).size(), 1);
}

TEST_F(TraceExportTest, SourceThatCannotBeAsked_LeavesItsPartOut) {
  TraceExporter::Options options = Options();
  options.ask_node = [](const RequestContext&, const std::string&, const otel::TraceId&) {
    return TraceExporter::Answer(absl::UnavailableError("gone"));
  };
  TraceExporter exporter(std::move(options));
  exporter.OnTransfer(Report(trace_, absl::UnavailableError("no source"), absl::Seconds(1)));
  EXPECT_EQ(telemetry_->AwaitSpan("GlobalStore/RequestReplicaTransport").context.trace_id, trace_.trace_id);
}

}  // namespace tensorcast::daemon::trace_export_test
