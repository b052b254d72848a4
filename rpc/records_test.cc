#include "rpc/records.h"

#include <grpcpp/channel.h>
#include <grpcpp/impl/service_type.h>

#include <string>

#include "absl/log/log.h"
#include "absl/status/status.h"
#include "base/request_context.h"
#include "gtest/gtest.h"
#include "otel/api/span.h"
#include "proto/records.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "rpc/server.h"

namespace tensorcast::rpc::records_test {

using Stub = v1::Records::Stub;

TraceContext Unsampled() {
  TraceContext context = TraceContext::NewRoot();
  context.trace_state.clear();
  context.flags = 0;
  return context;
}

class RecordsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = Server::Start({.listen = {"127.0.0.1:0"}, .services = {service_.get()}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::Records::NewStub(MakeChannel(server_->addresses()[0]));
  }

  absl::StatusOr<v1::RecordedSlice> ReadTrace(const std::string& trace_id) {
    v1::ReadTraceRequest request;
    request.set_trace_id(trace_id);
    return CallUnary(*stub_, &Stub::ReadTrace, RequestContext::Background(absl::Seconds(10)), request);
  }
  absl::StatusOr<v1::ProcessRecords> ReadAll() {
    return CallUnary(*stub_, &Stub::ReadAll, RequestContext::Background(absl::Seconds(10)),
                     v1::ReadAllRequest());
  }

  Executor executor_;
  const std::unique_ptr<grpc::Service> service_ =
      MakeRecordsService({.role = "daemon", .version = "1.2.3", .configuration = "daemon:\n"}, &executor_);
  std::unique_ptr<Server> server_;
  std::unique_ptr<Stub> stub_;
};

TEST_F(RecordsTest, Span_ArrivesWithAllThatItSaid) {
  const otel::FlightRecorder recorder;
  const TraceContext parent = Unsampled();
  const TraceContext linked = Unsampled();
  {
    const otel::Scope scope(parent);
    LOG(INFO) << "beside it";
    otel::Span span("P2P/Pull", parent,
                    {{otel::attr::kLane, "tcp"},
                     {otel::attr::kChunks, -3},
                     {otel::attr::kShared, true},
                     {otel::attr::kBusySeconds, 1.5}});
    span.AddEvent("refetch", {{otel::attr::kReason, "bad \xff text"}});
    span.AddLink(linked);
    span.SetError(absl::UnavailableError("gone"));
  }
  const absl::StatusOr<v1::RecordedSlice> answer = ReadTrace(parent.TraceIdHex());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(answer->recording());
  const otel::RecordedSlice slice = FromProto(*answer);
  ASSERT_EQ(slice.spans.size(), 1);
  const otel::KeptSpan& span = slice.spans[0];
  EXPECT_EQ(span.name, "P2P/Pull");
  EXPECT_EQ(span.parent, parent);
  EXPECT_EQ(span.context.trace_id, parent.trace_id);
  EXPECT_GE(span.end, span.start);
  ASSERT_EQ(span.attributes.size(), 4);
  EXPECT_EQ(span.attributes[0].value().as_string(), "tcp");
  EXPECT_EQ(span.attributes[1].value().as_int(), -3);
  EXPECT_TRUE(span.attributes[2].value().as_bool());
  EXPECT_EQ(span.attributes[3].value().as_double(), 1.5);
  ASSERT_EQ(span.events.size(), 1);
  EXPECT_EQ(span.events[0].name, "refetch");
  ASSERT_EQ(span.links.size(), 1);
  EXPECT_EQ(span.links[0].span_id, linked.span_id);
  EXPECT_EQ(span.error->second, "gone");
  ASSERT_EQ(slice.lines.size(), 1);
  EXPECT_EQ(slice.lines[0].message, "beside it");
  EXPECT_EQ(slice.lines[0].trace.trace_id, parent.trace_id);
}

TEST_F(RecordsTest, ReadTrace_LeavesOtherTracesOut) {
  const otel::FlightRecorder recorder;
  otel::Span("P2P/Pull", Unsampled()).End();
  const absl::StatusOr<v1::RecordedSlice> answer = ReadTrace(Unsampled().TraceIdHex());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->spans_size(), 0);
  EXPECT_EQ(ReadAll()->slice().spans_size(), 1);
}

TEST_F(RecordsTest, ReadAll_TellsWhatProcessRunsWith) {
  const absl::StatusOr<v1::ProcessRecords> answer = ReadAll();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->role(), "daemon");
  EXPECT_EQ(answer->version(), "1.2.3");
  EXPECT_EQ(answer->configuration(), "daemon:\n");
  EXPECT_FALSE(answer->slice().recording()) << "no recorder runs";
}

TEST_F(RecordsTest, TraceIdThatIsNone_IsRefused) {
  EXPECT_EQ(ReadTrace("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadTrace("abc").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace tensorcast::rpc::records_test
