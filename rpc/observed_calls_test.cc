// The telemetry of calls: the spans at both ends, and the tc_rpc_* metrics.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "absl/log/log_sink.h"
#include "absl/log/log_sink_registry.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/address.h"
#include "otel/api/testing/recorded_telemetry.h"
#include "rpc/call.h"
#include "rpc/call_observer.h"
#include "rpc/rpc_test_service.h"

namespace tensorcast::rpc::observed_calls_test {
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

TEST_F(ObservedCalls, Call_IsClientSpanWithServerSpanBelow) {
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
  const absl::StatusOr<HostPort> server_at = ParseHostPort(server_.server->addresses()[0]);
  ASSERT_TRUE(server_at.ok());
  EXPECT_EQ(client.attribute(attr::kServerAddress), server_at->host);
  EXPECT_EQ(client.attribute(attr::kServerPort), std::to_string(server_at->port));
}

// OpenTelemetry's conventions: a client's span is an error whatever the code, a server's only when it is the
// server that failed.
TEST_F(ObservedCalls, Error_MarksServerSpanOnlyForServerFaults) {
  const std::pair<absl::Status, bool> cases[] = {
      {absl::NotFoundError("no such key"), false},   {absl::AbortedError("revision 3, expected 2"), false},
      {absl::ResourceExhaustedError("full"), false}, {absl::DataLossError("wrong bytes"), true},
      {absl::InternalError("broken"), true},         {absl::DeadlineExceededError("too late"), true}};
  absl::Status answer;
  server_.service.bind_key = [&](auto&&...) { return answer; };
  server_.Start();
  for (const auto& [status, is_fault] : cases) {
    answer = status;
    const RequestContext context = Soon();
    ASSERT_FALSE(CallUnary(*server_.stub, &Stub::BindKey, context, {}).ok());
    const auto of = [&](SpanKind kind) {
      return [&context, kind](const RecordedSpan& span) {
        return span.kind == kind && span.context.trace_id == context.trace.trace_id;
      };
    };
    const std::string code = absl::StatusCodeToString(status.code());
    const RecordedSpan client = recorded_.AwaitSpan("GlobalStore/BindKey", of(SpanKind::kClient));
    const RecordedSpan server = recorded_.AwaitSpan("GlobalStore/BindKey", of(SpanKind::kServer));
    EXPECT_EQ(client.error, code);
    EXPECT_EQ(server.error, is_fault ? code : "") << code;
    EXPECT_EQ(server.attribute(attr::kRpcGrpcStatusCode), std::to_string(static_cast<int>(status.code())));
  }
}

TEST_F(ObservedCalls, ServerSpan_CarriesIdsOfRequest) {
  server_.service.bind_key = [](auto&&...) { return absl::OkStatus(); };
  server_.Start();
  v1::BindKeyRequest request;
  request.set_key("llama/prod");
  request.set_artifact_id("tc2:a");
  ASSERT_TRUE(CallUnary(*server_.stub, &Stub::BindKey, Soon(), request).ok());
  const RecordedSpan span = recorded_.AwaitSpan("GlobalStore/BindKey", Of(SpanKind::kServer));
  EXPECT_EQ(span.attribute(attr::kKey), "llama/prod");
  EXPECT_EQ(span.attribute(attr::kArtifactId), "tc2:a");
}

TEST_F(ObservedCalls, RequestAttributes_AreFoundInNestedMessages) {
  v1::RequestReplicaTransportRequest request;
  request.mutable_node()->set_node_id("n");
  request.set_artifact_id("tc2:a");
  request.mutable_destination()->set_kind(v1::LOCATION_KIND_GPU);
  request.mutable_destination()->set_device(3);
  v1::PublishArtifactRequest publish;
  publish.mutable_replica()->set_replica_id("r");
  publish.mutable_replica()->mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
  {
    otel::Span span("Test/Request");
    SetRequestAttributes(request, span);
    otel::Span other("Test/Publish");
    SetRequestAttributes(publish, other);
  }
  const RecordedSpan span = recorded_.AwaitSpan("Test/Request");
  EXPECT_EQ(span.attribute(attr::kNodeId), "n");
  EXPECT_EQ(span.attribute(attr::kArtifactId), "tc2:a");
  EXPECT_EQ(span.attribute(attr::kLocation), "gpu");
  EXPECT_EQ(span.attribute(attr::kDeviceId), "3");
  EXPECT_EQ(span.attribute(attr::kReplicaId), "") << "what is not named is left out";
  const RecordedSpan other = recorded_.AwaitSpan("Test/Publish");
  EXPECT_EQ(other.attribute(attr::kReplicaId), "r");
  EXPECT_EQ(other.attribute(attr::kLocation), "cpu");
}

TEST_F(ObservedCalls, SpansOfClient_CarrySessionId) {
  server_.service.bind_key = [](auto&&...) { return absl::OkStatus(); };
  server_.Start();
  const auto stub =
      v1::GlobalStore::NewStub(MakeChannel(server_.server->addresses()[0], {.session_id = "session"}));
  ASSERT_TRUE(CallUnary(*stub, &Stub::BindKey, Soon(), {}).ok());
  for (const SpanKind kind : {SpanKind::kClient, SpanKind::kServer}) {
    EXPECT_EQ(recorded_.AwaitSpan("GlobalStore/BindKey", Of(kind)).attribute(attr::kSessionId), "session");
  }
}

// Keeps the lines that are logged while it lives.
class LoggedLines final : public absl::LogSink {
 public:
  LoggedLines() { absl::AddLogSink(this); }
  ~LoggedLines() override { absl::RemoveLogSink(this); }
  void Send(const absl::LogEntry& entry) override {
    absl::MutexLock lock(&mutex_);
    lines_.push_back(absl::StrCat(otel::CurrentTraceId(), " ", entry.text_message()));
  }
  std::vector<std::string> With(std::string_view text) const {
    absl::MutexLock lock(&mutex_);
    std::vector<std::string> found;
    for (const std::string& line : lines_) {
      if (absl::StrContains(line, text)) found.push_back(line);
    }
    return found;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

// A call that ends between its headers and its message: nothing is wrong with a text of it.
TEST_F(ObservedCalls, CallCancelledBeforeRequest_IsNotLoggedAsInvalidUtf8) {
  LoggedLines lines;
  server_.service.bind_key = [](auto&&...) { return absl::OkStatus(); };
  server_.Start();
  grpc::GenericStub stub(server_.channel);
  grpc::CompletionQueue queue;
  const auto await = [&queue](auto&& start) {
    start(static_cast<void*>(&queue));
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok));
  };
  for (int i = 0; i < 20; ++i) {
    grpc::ClientContext call;
    const auto stream = stub.PrepareCall(&call, "/tensorcast.v1.GlobalStore/BindKey", &queue);
    await([&](void* tag) { stream->StartCall(tag); });
    call.TryCancel();
    grpc::Status status;
    await([&](void* tag) { stream->Finish(&status, tag); });
    EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  }
  // On the same connection, so that what came before it has been seen.
  EXPECT_TRUE(CallUnary(*server_.stub, &Stub::BindKey, Soon(), {}).ok());
  server_.server.reset();
  EXPECT_THAT(lines.With("UTF-8"), IsEmpty());
}

TEST_F(ObservedCalls, FailedCall_IsOneLogLineWithTrace) {
  server_.service.bind_key = [](auto&&...) { return absl::NotFoundError("no artifact \"a\nb\""); };
  server_.Start();
  const LoggedLines logged;
  const RequestContext context = Soon();
  ASSERT_FALSE(CallUnary(*server_.stub, &Stub::BindKey, context, {}).ok());
  server_.server.reset();
  const std::vector<std::string> lines = logged.With("BindKey failed");
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0], context.trace.TraceIdHex() +
                          " GlobalStore/BindKey failed: NOT_FOUND: no artifact \\\"a\\\\x0ab\\\"")
      << "a caller's text makes no lines of its own";
}

TEST_F(ObservedCalls, ManyFailedCalls_LogIsLimited) {
  const LoggedLines logged;
  for (int i = 0; i < 500; ++i) LogFailedCall("Test/Flood", Soon(), absl::NotFoundError("nothing"));
  const size_t lines = logged.With("Test/Flood failed").size();
  EXPECT_GE(lines, 1);
  EXPECT_LT(lines, 500);
}

TEST_F(ObservedCalls, ManyCallerErrors_DoNotHideServerFault) {
  const LoggedLines logged;
  for (int i = 0; i < 500; ++i) LogFailedCall("Test/Asked", Soon(), absl::NotFoundError("nothing"));
  LogFailedCall("Test/Fault", Soon(), absl::InternalError("broken"));
  EXPECT_THAT(logged.With("Test/Fault failed: INTERNAL: broken"), SizeIs(1));
}

TEST_F(ObservedCalls, Error_IsCountedByCodeOnBothSides) {
  server_.service.bind_key = [](auto&&...) { return absl::AbortedError("revision 3, expected 2"); };
  server_.Start();
  ASSERT_FALSE(CallUnary(*server_.stub, &Stub::BindKey, Soon(), {}).ok());
  for (const char* side : {"client", "server"}) {
    const std::string method = "GlobalStore/BindKey";
    EXPECT_TRUE(recorded_.AwaitSum(metrics::kRpcErrors.id(), {side, method, "ABORTED"}, 1));
    EXPECT_EQ(recorded_.Sum(metrics::kRpcRequests.id(), {side, method, "ABORTED"}), 1);
  }
}

TEST_F(ObservedCalls, RpcMetrics_CountCallsDurationAndInFlight) {
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

TEST_F(ObservedCalls, EachAttempt_IsSpanAndRetriesNameReason) {
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

TEST_F(ObservedCalls, NoteRetry_AddsEventToSpan) {
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

TEST_F(ObservedCalls, Stream_IsOneSpan) {
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

TEST_F(ObservedCalls, CallCancelledByClient_SpansOnBothSidesSayCancelled) {
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
  const RecordedSpan served = recorded_.AwaitSpan("GlobalStore/BindKey", Of(SpanKind::kServer));
  EXPECT_EQ(served.attribute(attr::kRpcGrpcStatusCode), "1");
  EXPECT_EQ(served.error, "") << "which is not a fault of the server";
}

TEST_F(ObservedCalls, CallerWithoutTracing_TraceIsContinuedOrBegun) {
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
}  // namespace tensorcast::rpc::observed_calls_test
