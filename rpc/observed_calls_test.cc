// What calls say about themselves: the spans on both ends, and the tc_rpc_* metrics.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "otel/api/testing/recorded_telemetry.h"
#include "rpc/call.h"
#include "rpc/rpc_test_service.h"

namespace tensorcast::rpc {
namespace {

namespace attr = otel::attr;
namespace metrics = otel::metrics;
using otel::SpanKind;
using otel::testing::RecordedSpan;
using otel::testing::RecordedTelemetry;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Stub = v1::GlobalStore::Stub;

RequestContext Soon() { return RequestContext::Background(absl::Seconds(60)); }

otel::testing::SpanPredicate Of(SpanKind kind) {
  return [kind](const RecordedSpan& span) { return span.kind == kind; };
}

class ObservedCalls : public ::testing::Test {
 protected:
  // The calls have ended, and their interceptors are gone, when the server is.
  void TearDown() override { server_.server.reset(); }

  TestServer server_;
  RecordedTelemetry recorded_;
};

TEST_F(ObservedCalls, ACallIsAClientSpanAndBelowItAServerSpanOfOneTrace) {
  RequestContext seen;
  server_.service.bind_key = [&](const RequestContext& context, auto&&...) {
    seen = context;
    return absl::OkStatus();
  };
  server_.Start();
  RequestContext context = Soon();
  otel::Span root("Test/Root", context);
  root.AttachTo(&context);
  ASSERT_TRUE(CallUnary(*server_.stub, &Stub::BindKey, context, {}).ok());

  const RecordedSpan client = recorded_.AwaitSpan("GlobalStore/BindKey", Of(SpanKind::kClient));
  const RecordedSpan server = recorded_.AwaitSpan("GlobalStore/BindKey", Of(SpanKind::kServer));
  EXPECT_EQ(client.parent.span_id, root.context().span_id);
  EXPECT_EQ(server.parent.span_id, client.context.span_id);
  EXPECT_EQ(server.context.trace_id, root.context().trace_id);
  EXPECT_EQ(seen.trace.span_id, server.context.span_id)
      << "what the handler causes is below the server's span";
  for (const RecordedSpan& span : {client, server}) {
    EXPECT_EQ(span.attribute(attr::kRpcSystem), "grpc");
    EXPECT_EQ(span.attribute(attr::kRpcService), "tensorcast.v1.GlobalStore");
    EXPECT_EQ(span.attribute(attr::kRpcMethod), "BindKey");
    EXPECT_EQ(span.attribute(attr::kRpcGrpcStatusCode), "0");
    EXPECT_EQ(span.attribute(attr::kRequestId), context.request_id);
    EXPECT_EQ(span.attribute(attr::kAttempt), "") << "the first says nothing";
    EXPECT_EQ(span.error, "");
  }
}

TEST_F(ObservedCalls, AnErrorMarksBothSpansAndIsCountedByItsCode) {
  server_.service.bind_key = [](auto&&...) { return absl::AbortedError("revision 3, expected 2"); };
  server_.Start();
  ASSERT_FALSE(CallUnary(*server_.stub, &Stub::BindKey, Soon(), {}).ok());
  for (const SpanKind kind : {SpanKind::kClient, SpanKind::kServer}) {
    const RecordedSpan span = recorded_.AwaitSpan("GlobalStore/BindKey", Of(kind));
    EXPECT_EQ(span.error, "ABORTED");
    EXPECT_EQ(span.attribute(attr::kRpcGrpcStatusCode), "10");
  }
  for (const char* side : {"client", "server"}) {
    const std::string method = "GlobalStore/BindKey";
    EXPECT_TRUE(recorded_.AwaitSum(metrics::kRpcErrors.id(), {side, method, "ABORTED"}, 1));
    EXPECT_EQ(recorded_.Sum(metrics::kRpcRequests.id(), {side, method, "ABORTED"}), 1);
  }
}

TEST_F(ObservedCalls, MetricsCountCallsTheirTimeAndThoseUnderWay) {
  absl::Notification started;
  absl::Notification release;
  server_.service.bind_key = [&](auto&&...) {
    started.Notify();
    release.WaitForNotification();
    return absl::OkStatus();
  };
  server_.Start();
  std::thread caller([&] { EXPECT_TRUE(CallUnary(*server_.stub, &Stub::BindKey, Soon(), {}).ok()); });
  started.WaitForNotification();
  const std::string method = "GlobalStore/BindKey";
  for (const char* side : {"client", "server"}) {
    EXPECT_EQ(recorded_.Sum(metrics::kRpcInFlight.id(), {side, method}), 1) << side;
    EXPECT_EQ(recorded_.Sum(metrics::kRpcRequests.id(), {side, method, "OK"}), 0) << side;
  }
  release.Notify();
  caller.join();
  for (const char* side : {"client", "server"}) {
    EXPECT_TRUE(recorded_.AwaitSum(metrics::kRpcRequests.id(), {side, method, "OK"}, 1)) << side;
    EXPECT_EQ(recorded_.Sum(metrics::kRpcInFlight.id(), {side, method}), 0) << side;
    EXPECT_EQ(recorded_.Sum(metrics::kRpcErrors.id(), {side, method, "OK"}), 0) << side;
  }
  // The duration is the last that a call tells, after it was counted.
  server_.server.reset();
  EXPECT_EQ(recorded_.Count(metrics::kRpcDurationSeconds.id(), {"server", method}), 1);
}

TEST_F(ObservedCalls, EachAttemptIsASpanOfTheSameTraceAndLaterOnesSayWhy) {
  std::atomic<int> calls = 0;
  server_.service.bind_key = [&](auto&&...) {
    return ++calls < 3 ? absl::UnavailableError("starting") : absl::OkStatus();
  };
  server_.Start();
  RequestContext context = Soon();
  context.trace.trace_state = "vendor=1";  // a trace that another program began
  ASSERT_TRUE(CallUnary(*server_.stub, &Stub::BindKey, context, {}).ok());

  const std::vector<RecordedSpan> spans = recorded_.AwaitSpans("GlobalStore/BindKey", 6);
  ASSERT_THAT(spans, SizeIs(6));
  std::vector<RecordedSpan> clients;
  for (const RecordedSpan& span : spans) {
    EXPECT_EQ(span.context.trace_id, context.trace.trace_id);
    EXPECT_EQ(span.context.trace_state, "vendor=1");
    EXPECT_EQ(span.attribute(attr::kRequestId), context.request_id);
    if (span.kind == SpanKind::kClient) clients.push_back(span);
  }
  ASSERT_THAT(clients, SizeIs(3));
  EXPECT_THAT(clients[0].EventsNamed("retry"), IsEmpty());
  EXPECT_EQ(clients[0].error, "UNAVAILABLE");
  for (int attempt : {2, 3}) {
    const RecordedSpan& span = clients[attempt - 1];
    EXPECT_EQ(span.parent.span_id, context.trace.span_id);
    EXPECT_EQ(span.attribute(attr::kAttempt), std::to_string(attempt));
    ASSERT_THAT(span.EventsNamed("retry"), SizeIs(1));
    EXPECT_EQ(span.EventsNamed("retry")[0].attributes.at("tc.attempt"), std::to_string(attempt));
    EXPECT_EQ(span.EventsNamed("retry")[0].attributes.at("tc.reason"), "UNAVAILABLE");
  }
  const RecordedSpan last = recorded_.AwaitSpan("GlobalStore/BindKey", [](const RecordedSpan& span) {
    return span.kind == SpanKind::kServer && span.attribute(attr::kAttempt) == "3";
  });
  EXPECT_EQ(last.parent.span_id, clients[2].context.span_id);
}

TEST_F(ObservedCalls, NoteRetryTellsTheSpanOfALargerWork) {
  {
    otel::Span span("Client/Get");
    NoteRetry(span, {});
    NoteRetry(span, {.number = 2, .previous = absl::UnavailableError("restarting")});
  }
  const RecordedSpan span = recorded_.AwaitSpan("Client/Get");
  ASSERT_THAT(span.events, SizeIs(1));
  EXPECT_EQ(span.events[0].name, "retry");
  EXPECT_EQ(span.events[0].attributes.at("exception.message"), "restarting");
}

TEST_F(ObservedCalls, AStreamIsOneSpanToItsEnd) {
  server_.service.describe = [](const RequestContext&, StreamWriter<v1::DescribeArtifactResponse>& writer) {
    for (int i = 0; i < 20; ++i) {
      if (absl::Status status = writer.Write({}); !status.ok()) return status;
    }
    return absl::OkStatus();
  };
  server_.Start();
  int received = 0;
  ASSERT_TRUE(CallServerStream(*server_.stub, &Stub::DescribeArtifact, Soon(), {}, [&](auto&&) {
                ++received;
                return absl::OkStatus();
              }).ok());
  EXPECT_EQ(received, 20);
  EXPECT_THAT(recorded_.AwaitSpans("GlobalStore/DescribeArtifact", 2), SizeIs(2));
}

TEST_F(ObservedCalls, ACallThatItsClientCancelsEndsAsCancelledOnBothSides) {
  absl::Notification server_saw_it;
  const RequestContext context = Soon();
  server_.service.bind_key = [&](const RequestContext& call, auto&&...) {
    const auto registration = call.cancellation.OnCancel([&] { server_saw_it.Notify(); });
    context.cancellation.Cancel();
    server_saw_it.WaitForNotification();
    return call.Check("binding");
  };
  server_.Start();
  EXPECT_TRUE(absl::IsCancelled(CallUnary(*server_.stub, &Stub::BindKey, context, {}).status()));
  EXPECT_EQ(recorded_.AwaitSpan("GlobalStore/BindKey", Of(SpanKind::kClient)).error, "CANCELLED");
  EXPECT_EQ(recorded_.AwaitSpan("GlobalStore/BindKey", Of(SpanKind::kServer)).error, "CANCELLED");
}

TEST_F(ObservedCalls, ACallerWithoutTracingIsContinuedWhereItSentATraceAndElseBeginsOne) {
  server_.service.bind_key = [](auto&&...) { return absl::OkStatus(); };
  server_.Start();
  v1::BindKeyResponse response;
  grpc::ClientContext plain;  // filed nowhere, as a program's without this library
  plain.AddMetadata("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
  ASSERT_TRUE(server_.stub->BindKey(&plain, {}, &response).ok());
  const RecordedSpan child = recorded_.AwaitSpan("GlobalStore/BindKey");
  EXPECT_EQ(child.parent.SpanIdHex(), "b7ad6b7169203331");

  grpc::ClientContext silent;
  ASSERT_TRUE(server_.stub->BindKey(&silent, {}, &response).ok());
  const RecordedSpan root = recorded_.AwaitSpan(
      "GlobalStore/BindKey", [](const RecordedSpan& span) { return !span.parent.IsValid(); });
  EXPECT_EQ(root.kind, SpanKind::kServer);
}

}  // namespace
}  // namespace tensorcast::rpc
