// The guard for linking our Abseil beside the distribution's gRPC, which inlines absl::Mutex in headers:
// sixteen threads of bidirectional streams that contend for one server, one channel and one executor. A
// mismatch shows as a crash, a hang or a lost message.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "rpc/call.h"
#include "rpc/rpc_test_service.h"

namespace tensorcast::rpc::contended_stream_test {
namespace {

constexpr int kThreads = 16;
constexpr int kCallsPerThread = 20;
constexpr size_t kRequests = 25;

// Answers every request with as many progress events and at the end with the number of bytes it was sent.
class EchoDaemon final : public v1::StoreDaemon::CallbackService {
 public:
  explicit EchoDaemon(Executor* executor) : executor_(*executor) {}

  grpc::ServerBidiReactor<v1::PutArtifactRequest, v1::PutArtifactResponse>* PutArtifact(
      grpc::CallbackServerContext* call) override {
    auto bytes = std::make_shared<uint64_t>(0);
    return HandleBidiStream<v1::PutArtifactRequest, v1::PutArtifactResponse>(
        call, executor_,
        [bytes](v1::PutArtifactRequest&& request) {
          *bytes += request.binding().expected_revision();
          return absl::OkStatus();
        },
        [bytes](const RequestContext&, StreamWriter<v1::PutArtifactResponse>& writer) {
          for (size_t i = 0; i < kRequests; ++i) {
            v1::PutArtifactResponse progress;
            progress.mutable_progress()->set_bytes_done(i);
            if (i % 2 == 0) {
              writer.WriteLatest(std::move(progress));
            } else if (absl::Status status = writer.Write(std::move(progress)); !status.ok()) {
              return status;
            }
          }
          v1::PutArtifactResponse result;
          result.mutable_result()->set_key_revision(*bytes);
          return writer.Write(std::move(result));
        });
  }

 private:
  Executor& executor_;
};

// Returns whether the call's mandatory messages all came, in order.
bool OneCall(v1::StoreDaemon::Stub& stub, const RequestContext& context) {
  uint64_t sum = 0;
  uint64_t odd = 0;
  uint64_t expected = 0;
  for (size_t i = 0; i < kRequests; ++i) expected += i;
  absl::Status status = CallBidiStream(
      stub, &v1::StoreDaemon::Stub::PutArtifact, context, kRequests,
      [](size_t i) {
        v1::PutArtifactRequest request;
        request.mutable_binding()->set_expected_revision(i);
        return request;
      },
      [&](v1::PutArtifactResponse&& response) {
        if (response.has_result()) sum = response.result().key_revision();
        if (response.has_progress() && response.progress().bytes_done() % 2 == 1) ++odd;
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  return status.ok() && sum == expected && odd == kRequests / 2;
}

TEST(ContendedStreams, SixteenThreadsOfBidiStreams_LoseNothing) {
  TestServer server;
  EchoDaemon daemon(&server.executor);
  server.Start({&daemon});
  auto stub = v1::StoreDaemon::NewStub(server.channel);
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kCallsPerThread; ++i) {
        if (OneCall(*stub, RequestContext::Background(absl::Seconds(100)))) ++good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, kThreads * kCallsPerThread);
  server.server.reset();  // the daemon's calls end before it does
}

TEST(ContendedStreams, CancelledBidiStream_DoesNotHang) {
  TestServer server;
  EchoDaemon daemon(&server.executor);
  server.Start({&daemon});
  auto stub = v1::StoreDaemon::NewStub(server.channel);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kCallsPerThread; ++i) {
        RequestContext context = RequestContext::Background(absl::Seconds(100));
        size_t made = 0;
        const size_t cancel_at = static_cast<size_t>(t + i) % kRequests;
        absl::Status status = CallBidiStream(
            *stub, &v1::StoreDaemon::Stub::PutArtifact, context, kRequests,
            [&](size_t) {
              if (made++ == cancel_at) context.cancellation.Cancel();
              return v1::PutArtifactRequest();
            },
            [](auto&&) { return absl::OkStatus(); });
        EXPECT_TRUE(absl::IsCancelled(status)) << status;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  server.server.reset();
}

}  // namespace
}  // namespace tensorcast::rpc::contended_stream_test
