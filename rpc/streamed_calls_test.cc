// Streamed calls and their handlers against each other, over real sockets.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "rpc/call.h"
#include "rpc/rpc_test_service.h"

namespace tensorcast::rpc::streamed_calls_test {
namespace {

using ::testing::HasSubstr;
using Stub = v1::GlobalStore::Stub;

TEST(ClientStream, ClientStream_DeliversAllMessagesBeforeHandler) {
  TestServer server;
  std::vector<uint64_t> got;
  server.service.on_inventory_message = [&](v1::ReconcileInventoryRequest&& request) {
    got.push_back(request.sequence());
    return absl::OkStatus();
  };
  server.service.on_inventory_end = [&](const RequestContext&, v1::ReconcileInventoryResponse& response) {
    response.add_unknown_artifacts(absl::StrCat(got.size()));
    return absl::OkStatus();
  };
  server.Start();
  auto response =
      CallClientStream(*server.stub, &Stub::ReconcileInventory, Within(absl::Seconds(60)), 100, [](size_t i) {
        v1::ReconcileInventoryRequest request;
        request.set_sequence(i);
        return request;
      });
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->unknown_artifacts(0), "100");
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], i);
}

TEST(ClientStream, RefusedMessage_EndsCallWithReason) {
  TestServer server;
  server.service.on_inventory_message = [](v1::ReconcileInventoryRequest&& request) {
    return request.sequence() < 3 ? absl::OkStatus() : absl::InvalidArgumentError("message 3 is bad");
  };
  server.service.on_inventory_end = [](auto&&...) {
    ADD_FAILURE() << "the handler ran";
    return absl::OkStatus();
  };
  server.Start();
  auto response =
      CallClientStream(*server.stub, &Stub::ReconcileInventory, Within(absl::Seconds(60)), 10, [](size_t i) {
        v1::ReconcileInventoryRequest request;
        request.set_sequence(i);
        return request;
      });
  EXPECT_EQ(response.status(), absl::InvalidArgumentError("message 3 is bad"));
}

TEST(ClientStream, TooManyMessagesOrBytes_AreRefused) {
  for (const StreamBounds bounds : {StreamBounds{.max_messages = 4}, StreamBounds{.max_bytes = 3000}}) {
    TestServer server;
    server.service.inventory_bounds = bounds;
    server.service.on_inventory_message = [](auto&&) { return absl::OkStatus(); };
    server.service.on_inventory_end = [](auto&&...) { return absl::OkStatus(); };
    server.Start();
    auto response =
        CallClientStream(*server.stub, &Stub::ReconcileInventory, Within(absl::Seconds(60)), 5, [](size_t) {
          v1::ReconcileInventoryRequest request;
          request.mutable_node()->set_node_id(std::string(900, 'n'));
          return request;
        });
    EXPECT_TRUE(absl::IsResourceExhausted(response.status())) << response.status();
  }
}

TEST(ClientStream, BytesOfAllStreams_AreLimitedTogether) {
  TestServer server;
  server.service.inventory_bounds = {.max_bytes_together = 3000};
  absl::Notification arrived;
  absl::Notification other_refused;
  server.service.on_inventory_message = [&](v1::ReconcileInventoryRequest&& request) {
    if (request.sequence() == 1) arrived.Notify();
    return absl::OkStatus();
  };
  server.service.on_inventory_end = [](auto&&...) { return absl::OkStatus(); };
  server.Start();
  const auto message = [](uint64_t sequence) {
    v1::ReconcileInventoryRequest request;
    request.set_sequence(sequence);
    request.mutable_node()->set_node_id(std::string(1600, 'n'));
    return request;
  };
  const auto one = [&](uint64_t sequence) {
    return CallClientStream(*server.stub, &Stub::ReconcileInventory, Within(absl::Seconds(60)), 1,
                            [&](size_t) { return message(sequence); }, {.retry_for = absl::ZeroDuration()})
        .status();
  };
  std::thread first([&] {
    auto response = CallClientStream(*server.stub, &Stub::ReconcileInventory, Within(absl::Seconds(60)), 2,
                                     [&](size_t i) {
                                       if (i == 0) return message(1);
                                       other_refused.WaitForNotification();
                                       return v1::ReconcileInventoryRequest();
                                     });
    EXPECT_TRUE(response.ok()) << response.status();
  });
  arrived.WaitForNotification();
  const absl::Status refused = one(2);
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  other_refused.Notify();
  first.join();
  // Its part is free a moment after its caller has the answer.
  absl::Status served;
  EXPECT_TRUE(testing::Eventually([&] { return !absl::IsUnavailable(served = one(3)); }));
  EXPECT_TRUE(served.ok()) << served;
}

TEST(ClientStream, CancelledClientStream_NeverReachesHandler) {
  TestServer server;
  absl::Notification first_message;
  std::atomic<bool> handled{false};
  server.service.on_inventory_message = [&](auto&&) {
    if (!first_message.HasBeenNotified()) first_message.Notify();
    return absl::OkStatus();
  };
  server.service.on_inventory_end = [&](auto&&...) {
    handled = true;
    return absl::OkStatus();
  };
  server.Start();
  const RequestContext context = Within(absl::Seconds(60));
  auto response = CallClientStream(*server.stub, &Stub::ReconcileInventory, context, 2, [&](size_t i) {
    if (i == 1) {
      first_message.WaitForNotification();
      context.cancellation.Cancel();
    }
    return v1::ReconcileInventoryRequest();
  });
  EXPECT_TRUE(absl::IsCancelled(response.status())) << response.status();
  server.server->Shutdown(SteadyNow() + absl::Seconds(30));  // every call has ended then
  EXPECT_FALSE(handled);
}

TEST(ClientStream, FewerMessagesThanAnnounced_AreRefused) {
  TestServer server;
  server.service.on_inventory_message = [](auto&&) { return absl::OkStatus(); };
  server.service.on_inventory_end = [](auto&&...) {
    ADD_FAILURE() << "the handler ran";
    return absl::OkStatus();
  };
  server.Start();
  const RequestContext context = Within(absl::Seconds(60));
  ClientCall call(context);
  call.AnnounceMessages(3);
  v1::ReconcileInventoryResponse response;
  auto stream = server.stub->ReconcileInventory(call.get(), &response);
  ASSERT_TRUE(stream->Write({}));
  stream->WritesDone();
  const absl::Status status = FromGrpcStatus(stream->Finish());
  EXPECT_THAT(status.message(), HasSubstr("after 1 of 3 messages"));
}

TEST(ServerStream, ServerStream_DeliversEveryMessageThenStatus) {
  TestServer server;
  server.service.describe = [](const RequestContext&, StreamWriter<v1::DescribeArtifactResponse>& writer) {
    for (int i = 0; i < 50; ++i) {
      v1::DescribeArtifactResponse response;
      response.set_manifest_piece(std::to_string(i));
      if (absl::Status status = writer.Write(std::move(response)); !status.ok()) return status;
    }
    return absl::NotFoundError("the end");
  };
  server.Start();
  int next = 0;
  absl::Status status = CallServerStream(*server.stub, &Stub::DescribeArtifact, Within(absl::Seconds(60)), {},
                                         [&](v1::DescribeArtifactResponse&& response) {
                                           EXPECT_EQ(response.manifest_piece(), std::to_string(next++));
                                           return absl::OkStatus();
                                         });
  EXPECT_EQ(status, absl::NotFoundError("the end"));
  EXPECT_EQ(next, 50);
}

TEST(ServerStream, ReaderStops_HandlerIsCancelled) {
  TestServer server;
  absl::Notification stopped;
  server.service.describe = [&](const RequestContext&, StreamWriter<v1::DescribeArtifactResponse>& writer) {
    absl::Status status;
    while (status.ok()) {
      v1::DescribeArtifactResponse response;
      response.set_manifest_piece(std::string(100000, 'p'));
      status = writer.Write(std::move(response));
    }
    stopped.Notify();
    return status;
  };
  server.Start();
  absl::Status status = CallServerStream(*server.stub, &Stub::DescribeArtifact, Within(absl::Seconds(60)), {},
                                         [](auto&&) { return absl::DataLossError("enough"); });
  EXPECT_EQ(status, absl::DataLossError("enough"));
  stopped.WaitForNotification();
}

TEST(ServerStream, ServerStream_IsRetriedOnlyBeforeFirstMessage) {
  TestServer server;
  std::atomic<int> calls{0};
  server.service.describe = [&](const RequestContext&, StreamWriter<v1::DescribeArtifactResponse>& writer) {
    if (++calls == 1) return absl::UnavailableError("before the first message");
    (void)writer.Write({});
    return absl::UnavailableError("after the first message");
  };
  server.Start();
  absl::Status status = CallServerStream(*server.stub, &Stub::DescribeArtifact, Within(absl::Seconds(60)), {},
                                         [](auto&&) { return absl::OkStatus(); });
  EXPECT_EQ(status, absl::UnavailableError("after the first message"));
  EXPECT_EQ(calls, 2);
}

TEST(ServerStream, Watch_NeedsNoThreadAndWriterMayOutliveIt) {
  TestServer server({.max_threads = 1});
  absl::Mutex mutex;
  std::vector<std::shared_ptr<StreamWriter<v1::WatchKeysResponse>>> writers;
  std::vector<Finisher> finishers;
  server.service.watch = [&](const RequestContext&,
                             std::shared_ptr<StreamWriter<v1::WatchKeysResponse>> writer,
                             const Finisher& finisher) {
    absl::MutexLock lock(&mutex);
    writers.push_back(std::move(writer));
    finishers.push_back(finisher);
  };
  server.Start();
  const RequestContext context = Within(absl::Seconds(60));
  std::atomic<int> seen{0};
  std::vector<std::thread> watchers;
  for (int i = 0; i < 4; ++i) {
    watchers.emplace_back([&] {
      absl::Status status = CallServerStream(*server.stub, &Stub::WatchKeys, context, {}, [&](auto&&) {
        if (++seen == 4) context.cancellation.Cancel();
        return absl::OkStatus();
      });
      EXPECT_TRUE(absl::IsCancelled(status)) << status;
    });
  }
  {
    absl::MutexLock lock(&mutex);
    auto all_watch = [&] { return writers.size() == 4; };
    mutex.Await(absl::Condition(&all_watch));
    for (auto& writer : writers) writer->WriteLatest({});
  }
  for (std::thread& watcher : watchers) watcher.join();
  absl::MutexLock lock(&mutex);
  for (auto& writer : writers) {
    ASSERT_TRUE(testing::Eventually([&] { return writer->closed(); }));
    writer->WriteLatest({});
    EXPECT_TRUE(absl::IsCancelled(writer->Write({})));
  }
  finishers.clear();
}

}  // namespace
}  // namespace tensorcast::rpc::streamed_calls_test
