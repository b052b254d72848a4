// Unary calls, their handlers and the server, over real sockets. Streams: streamed_calls_test.cc.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/steady_time.h"
#include "proto/daemon.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/protocol_version.h"
#include "rpc/rpc_test_service.h"

namespace tensorcast::rpc::calls_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Stub = v1::GlobalStore::Stub;

TEST(Unary, UnaryCall_CarriesRequestContext) {
  TestServer server;
  std::optional<RequestContext> seen;
  server.service.bind_key = [&](const RequestContext& context, const v1::BindKeyRequest& request,
                                v1::BindKeyResponse& response) {
    seen = context;
    response.mutable_key()->set_name(request.key());
    return absl::OkStatus();
  };
  server.Start();
  RequestContext context = Within(absl::Seconds(30));
  context.trace.trace_state = "vendor=1";
  v1::BindKeyRequest request;
  request.set_key("llama/prod");
  auto response = CallUnary(*server.stub, &Stub::BindKey, context, request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->key().name(), "llama/prod");
  ASSERT_TRUE(seen.has_value());
  EXPECT_EQ(seen->request_id, context.request_id);
  EXPECT_EQ(seen->trace.trace_id, context.trace.trace_id);
  EXPECT_EQ(seen->trace.span_id, context.trace.span_id);  // no telemetry, no span between
  EXPECT_EQ(seen->trace.trace_state, "vendor=1");
  EXPECT_LT(absl::AbsDuration(seen->deadline - context.deadline), absl::Seconds(5));
}

TEST(Unary, CallerWithoutContext_GetsNewTraceAndNoDeadline) {
  TestServer server;
  std::optional<RequestContext> seen;
  server.service.bind_key = [&](const RequestContext& context, const v1::BindKeyRequest&,
                                v1::BindKeyResponse&) {
    seen = context;
    return absl::OkStatus();
  };
  server.Start();
  grpc::ClientContext plain;
  plain.AddMetadata("traceparent", "not a traceparent");
  plain.AddMetadata("tc-request-id", std::string(kMaxRequestIdBytes + 1, 'x'));
  v1::BindKeyResponse response;
  ASSERT_TRUE(server.stub->BindKey(&plain, {}, &response).ok());
  ASSERT_TRUE(seen.has_value());
  EXPECT_TRUE(seen->trace.IsValid());
  EXPECT_EQ(seen->request_id, "");
  EXPECT_EQ(seen->deadline, SteadyTime::InfiniteFuture());
}

TEST(Unary, ErrorOfHandler_ReturnsWithCodeAndMessage) {
  TestServer server;
  server.service.bind_key = [](auto&&...) { return absl::AbortedError("key k has revision 3, expected 2"); };
  server.Start();
  auto response = CallUnary(*server.stub, &Stub::BindKey, Within(absl::Seconds(30)), {});
  EXPECT_EQ(response.status(), absl::AbortedError("key k has revision 3, expected 2"));
}

TEST(Unary, RequestTextThatIsNotUtf8_IsRefusedBeforeHandler) {
  TestServer server;
  bool called = false;
  server.service.bind_key = [&](const RequestContext&, const v1::BindKeyRequest&, v1::BindKeyResponse&) {
    called = true;
    return absl::OkStatus();
  };
  server.Start();
  v1::BindKeyRequest request;
  request.set_key("llama\xff");
  const absl::Status refused =
      CallUnary(*server.stub, &Stub::BindKey, Within(absl::Seconds(10)), request).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("UTF-8"));
  EXPECT_FALSE(called);
}

TEST(Unary, CancelledContext_EndsCallOnBothSides) {
  absl::Notification started;
  absl::Notification server_saw_it;
  TestServer server;  // its handlers end before what they wait for
  server.service.bind_key = [&](const RequestContext& context, const v1::BindKeyRequest&,
                                v1::BindKeyResponse&) {
    auto registration = context.cancellation.OnCancel([&] { server_saw_it.Notify(); });
    started.Notify();
    server_saw_it.WaitForNotification();
    return context.Check("binding");
  };
  server.Start();
  RequestContext context = Within(absl::Seconds(60));
  std::thread canceller([&] {
    started.WaitForNotification();
    context.cancellation.Cancel();
  });
  EXPECT_TRUE(absl::IsCancelled(CallUnary(*server.stub, &Stub::BindKey, context, {}).status()));
  server_saw_it.WaitForNotification();
  canceller.join();
}

TEST(Unary, CallCancelledByServerShutdown_IsUnavailable) {
  absl::Notification started;
  absl::Notification cancelled;
  TestServer server;
  server.service.bind_key = [&](const RequestContext& context, const v1::BindKeyRequest&,
                                v1::BindKeyResponse&) {
    const auto registration = context.cancellation.OnCancel([&] { cancelled.Notify(); });
    started.Notify();
    cancelled.WaitForNotification();
    return context.Check("binding");
  };
  server.Start();
  std::thread ending([&] {
    started.WaitForNotification();
    server.server->Shutdown(SteadyNow());
  });
  const absl::Status ended = CallUnary(*server.stub, &Stub::BindKey, Within(absl::Seconds(60)), {},
                                       {.retry_for = absl::ZeroDuration()})
                                 .status();
  EXPECT_TRUE(absl::IsUnavailable(ended)) << ended;
  ending.join();
}

TEST(Unary, ServerWithoutService_IsNamedInTheError) {
  TestServer server;
  server.Start();
  const auto daemon = v1::StoreDaemon::NewStub(server.channel);
  const absl::Status refused =
      CallUnary(*daemon, &v1::StoreDaemon::Stub::GetStatus, Within(absl::Seconds(60)), {}).status();
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr(absl::StrCat("the server at ipv4:", server.server->addresses()[0],
                                                        " does not have this call")));
}

TEST(Unary, Deadline_EndsCallAndCancelsHandler) {
  absl::Notification server_saw_it;
  absl::Notification client_ended;
  TestServer server;
  server.service.resolve_key = [&](const RequestContext& context, v1::ResolveKeyResponse&,
                                   const Finisher& finisher) {
    absl::Notification told;
    auto registration = context.cancellation.OnCancel([&] { told.Notify(); });
    told.WaitForNotification();
    server_saw_it.Notify();
    client_ended.WaitForNotification();  // so that this answer never comes first
    finisher.Finish(context.Check("resolving"));
  };
  server.Start();
  auto response = CallUnary(*server.stub, &Stub::ResolveKey, Within(absl::Milliseconds(50)), {});
  client_ended.Notify();
  EXPECT_TRUE(absl::IsDeadlineExceeded(response.status())) << response.status();
  EXPECT_THAT(response.status().message(), HasSubstr("did not answer before the deadline"));
  server_saw_it.WaitForNotification();
}

TEST(Unary, WaitingAsynchronousHandler_HoldsNoThread) {
  TestServer server({.max_threads = 1});
  absl::Mutex mutex;
  std::vector<Finisher> waiting;
  server.service.resolve_key = [&](const RequestContext&, v1::ResolveKeyResponse& response,
                                   const Finisher& finisher) {
    response.mutable_key()->set_revision(7);
    absl::MutexLock lock(&mutex);
    waiting.push_back(finisher);
  };
  server.Start();
  std::atomic<int> answered{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 5; ++i) {
    callers.emplace_back([&] {
      auto response = CallUnary(*server.stub, &Stub::ResolveKey, Within(absl::Seconds(60)), {});
      if (response.ok() && response->key().revision() == 7) ++answered;
    });
  }
  {
    absl::MutexLock lock(&mutex);
    auto all_wait = [&] { return waiting.size() == 5; };
    mutex.Await(absl::Condition(&all_wait));
    for (const Finisher& finisher : waiting) finisher.Finish(absl::OkStatus());
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(answered, 5);
}

TEST(Unary, HandlerDropsItsFinisher_CallerGetsInternalError) {
  TestServer server;
  server.service.resolve_key = [](const RequestContext&, v1::ResolveKeyResponse&, const Finisher&) {};
  server.Start();
  auto response = CallUnary(*server.stub, &Stub::ResolveKey, Within(absl::Seconds(60)), {});
  EXPECT_TRUE(absl::IsInternal(response.status())) << response.status();
}

// A proxy before a server on a busy host: a connection waits a while, then all bytes go through.
class SlowAcceptor {
 public:
  SlowAcceptor(const std::string& path, const std::string& server_path, absl::Duration wait)
      : listener_(Listen(path)), thread_([=, this] { Serve(server_path, wait); }) {}
  ~SlowAcceptor() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }

 private:
  static sockaddr_un AddressOf(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    return address;
  }
  static int Listen(const std::string& path) {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    const sockaddr_un address = AddressOf(path);
    EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(fd, 8), 0);
    return fd;
  }
  static void Copy(int from, int to) {
    char bytes[4096];
    for (ssize_t size; (size = read(from, bytes, sizeof(bytes))) > 0;) {
      if (send(to, bytes, size, MSG_NOSIGNAL) != size) break;
    }
    shutdown(from, SHUT_RDWR);
    shutdown(to, SHUT_RDWR);
  }
  void Serve(const std::string& server_path, absl::Duration wait) {
    const int client = accept(listener_, nullptr, nullptr);
    if (client < 0) return;
    absl::SleepFor(wait);  // what is tested
    const int server = socket(AF_UNIX, SOCK_STREAM, 0);
    const sockaddr_un address = AddressOf(server_path);
    EXPECT_EQ(connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    std::thread back([=] { Copy(server, client); });
    Copy(client, server);
    back.join();
    close(client);
    close(server);
  }

  const int listener_;
  std::thread thread_;
};

TEST(Unary, SlowHandshake_CallStillSucceeds) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/rpc_proxy.", getpid());
  TestServer server;
  server.service.bind_key = [](auto&&...) { return absl::OkStatus(); };
  auto started = Server::Start({.listen = {"unix:" + folder + ".server"}, .services = {&server.service}});
  ASSERT_TRUE(started.ok()) << started.status();
  SlowAcceptor acceptor(folder + ".proxy", folder + ".server", absl::Milliseconds(400));
  {
    auto stub = v1::GlobalStore::NewStub(MakeChannel("unix:" + folder + ".proxy"));
    const CallOptions once{.retry_for = absl::ZeroDuration()};
    const auto response = CallUnary(*stub, &Stub::BindKey, Within(absl::Seconds(60)), {}, once);
    EXPECT_TRUE(response.ok()) << response.status();
  }
  unlink((folder + ".proxy").c_str());
}

TEST(ProtocolVersion, CallerOfOtherProtocolVersion_IsRefusedBeforeHandler) {
  TestServer server;
  bool called = false;
  server.service.bind_key = [&](auto&&...) {
    called = true;
    return absl::OkStatus();
  };
  server.service.describe = [&](auto&&...) {
    called = true;
    return absl::OkStatus();
  };
  server.service.on_inventory_message = [&](auto&&...) {
    called = true;
    return absl::OkStatus();
  };
  server.Start();
  const auto stub = v1::GlobalStore::NewStub(
      grpc::CreateChannel(server.server->addresses()[0], grpc::InsecureChannelCredentials()));
  for (const auto& [said, told] :
       {std::pair{"", "names no version"}, {"1", "has version 1"}, {"3", "has version 3"}}) {
    const auto expect_refused = [told = told](const grpc::Status& status) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
      EXPECT_THAT(
          status.error_message(),
          HasSubstr(absl::StrCat(told, ", and this process has version 2; upgrade the older process")));
    };
    const auto make_call = [said = said] {
      auto call = std::make_unique<grpc::ClientContext>();
      if (*said != '\0') call->AddMetadata(kProtocolKey, said);
      return call;
    };
    v1::BindKeyResponse bound;
    auto call = make_call();
    expect_refused(stub->BindKey(call.get(), {}, &bound));
    call = make_call();
    v1::DescribeArtifactResponse described;
    const auto responses = stub->DescribeArtifact(call.get(), {});
    EXPECT_FALSE(responses->Read(&described));
    expect_refused(responses->Finish());
    call = make_call();
    v1::ReconcileInventoryResponse reconciled;
    const auto requests = stub->ReconcileInventory(call.get(), &reconciled);
    requests->Write({});
    requests->WritesDone();
    expect_refused(requests->Finish());
  }
  EXPECT_FALSE(called);
}

TEST(ProtocolVersion, ServerOfOtherProtocolVersion_IsNotTrusted) {
  Executor executor;
  TestGlobalStore service(&executor);
  service.bind_key = [](auto&&...) { return absl::OkStatus(); };
  service.describe = [](const RequestContext&, StreamWriter<v1::DescribeArtifactResponse>& writer) {
    return writer.Write({});
  };
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const auto stub = v1::GlobalStore::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", port)));
  const absl::Status unary = CallUnary(*stub, &Stub::BindKey, Within(absl::Seconds(30)), {}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(unary)) << unary;
  EXPECT_THAT(unary.message(), HasSubstr("names no version, and this process has version 2"));
  const absl::Status stream = CallServerStream(*stub, &Stub::DescribeArtifact, Within(absl::Seconds(30)), {},
                                               [](v1::DescribeArtifactResponse&&) {
                                                 ADD_FAILURE() << "its word was taken";
                                                 return absl::OkStatus();
                                               });
  EXPECT_TRUE(absl::IsFailedPrecondition(stream)) << stream;
}

TEST(Retry, Unavailable_IsRetriedUnderSameRequestId) {
  TestServer server;
  std::vector<std::string> ids;
  server.service.bind_key = [&](const RequestContext& context, const v1::BindKeyRequest&,
                                v1::BindKeyResponse&) {
    ids.push_back(context.request_id);
    return ids.size() < 3 ? absl::UnavailableError("starting") : absl::OkStatus();
  };
  server.Start();
  const RequestContext context = Within(absl::Seconds(60));
  ASSERT_TRUE(CallUnary(*server.stub, &Stub::BindKey, context, {}).ok());
  EXPECT_THAT(ids, ElementsAre(context.request_id, context.request_id, context.request_id));
}

TEST(Retry, OtherErrors_AreNotRetried) {
  for (auto code :
       {absl::StatusCode::kAborted, absl::StatusCode::kInternal, absl::StatusCode::kResourceExhausted}) {
    TestServer server;
    int calls = 0;
    server.service.bind_key = [&](auto&&...) {
      ++calls;
      return absl::Status(code, "no");
    };
    server.Start();
    EXPECT_EQ(CallUnary(*server.stub, &Stub::BindKey, Within(absl::Seconds(60)), {}).status().code(), code);
    EXPECT_EQ(calls, 1);
  }
}

TEST(Retry, RetryTimeIsOver_LastErrorIsReturned) {
  auto stub = v1::GlobalStore::NewStub(MakeChannel("unix:/nonexistent/tensorcast.sock"));
  const CallOptions options{.retry_for = absl::Milliseconds(100)};
  auto response = CallUnary(*stub, &Stub::BindKey, Within(absl::Seconds(60)), {}, options);
  EXPECT_TRUE(absl::IsUnavailable(response.status())) << response.status();
}

TEST(Retry, LastErrorAfterRetries_NamesFirstErrorToo) {
  int tries = 0;
  const absl::Status ended = RetryUnavailable(Within(absl::Seconds(60)), {}, [&](const Attempt&) {
    return ++tries == 1 ? absl::UnavailableError("the server already has 2 connections, its limit")
                        : WithoutRetry(absl::UnavailableError("broken pipe"));
  });
  EXPECT_TRUE(absl::IsUnavailable(ended)) << ended;
  EXPECT_EQ(ended.message(),
            "broken pipe (try 2; try 1 failed with: the server already has 2 connections, its limit)");
  EXPECT_FALSE(IsWorthRetrying(ended)) << "what came with the last error is lost";
}

TEST(Retry, DeadlineAfterRetries_ReportsFirstError) {
  const RequestContext context = Within(absl::Seconds(60));
  int tries = 0;
  const absl::Status ended = RetryUnavailable(context, {}, [&](const Attempt&) {
    return ++tries == 1 ? absl::UnavailableError("the daemon is starting")
                        : absl::DeadlineExceededError("Deadline Exceeded");
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(ended)) << ended;
  EXPECT_THAT(ended.message(), HasSubstr("the daemon is starting"));
}

TEST(Retry, AnswerAfterRetry_IsReturnedUnchanged) {
  int tries = 0;
  const absl::Status ended = RetryUnavailable(Within(absl::Seconds(60)), {}, [&](const Attempt&) {
    return ++tries == 1 ? absl::UnavailableError("starting") : absl::NotFoundError("there is no key k");
  });
  EXPECT_EQ(ended, absl::NotFoundError("there is no key k"));
}

TEST(Server, Server_ListensOnPortAndUnixSocket) {
  TestServer server;
  server.service.bind_key = [](auto&&...) { return absl::OkStatus(); };
  const std::string path = absl::StrCat(::testing::TempDir(), "/rpc_test.", getpid(), ".sock");
  auto started = Server::Start({.listen = {"127.0.0.1:0", "unix:" + path}, .services = {&server.service}});
  ASSERT_TRUE(started.ok()) << started.status();
  for (const std::string& address : (*started)->addresses()) {
    auto stub = v1::GlobalStore::NewStub(MakeChannel(address));
    EXPECT_TRUE(CallUnary(*stub, &Stub::BindKey, Within(absl::Seconds(60)), {}).ok()) << address;
  }
  auto second = Server::Start({.listen = {"unix:" + path}, .services = {&server.service}});
  EXPECT_TRUE(absl::IsAlreadyExists(second.status())) << second.status();
}

TEST(Server, AddressInUse_ErrorNamesIt) {
  TestServer server;
  server.Start();
  auto second = Server::Start({.listen = {server.server->addresses()[0]}});
  EXPECT_TRUE(absl::IsUnavailable(second.status())) << second.status();
  EXPECT_THAT(second.status().message(), HasSubstr(server.server->addresses()[0]));
  auto too_long = Server::Start({.listen = {"unix:/" + std::string(200, 'x')}});
  EXPECT_TRUE(absl::IsInvalidArgument(too_long.status())) << too_long.status();
}

TEST(Server, FullExecutor_CallIsUnavailable) {
  TestServer server({.max_threads = 1, .max_queued = 1});
  absl::Notification release;
  absl::Notification started;
  server.service.bind_key = [&](auto&&...) {
    if (!started.HasBeenNotified()) started.Notify();
    release.WaitForNotification();
    return absl::OkStatus();
  };
  server.Start();
  const CallOptions once{.retry_for = absl::ZeroDuration()};
  std::atomic<int> refused{0};
  std::atomic<int> served{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      auto response = CallUnary(*server.stub, &Stub::BindKey, Within(absl::Seconds(60)), {}, once);
      if (response.ok()) ++served;
      if (absl::IsUnavailable(response.status())) {
        if (++refused == 2) release.Notify();
      }
    });
    if (i == 0) started.WaitForNotification();  // from here on one call waits and the others are refused
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(refused, 2);
  EXPECT_EQ(served, 2);
}

}  // namespace
}  // namespace tensorcast::rpc::calls_test
