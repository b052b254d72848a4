// OTLP over HTTP, against a server that knows just enough of HTTP/1.1 to take the posts.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/log/log.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/span.h"
#include "otel/sdk/telemetry.h"
#include "otel/sdk/testing/config.h"
#include "otlp_subset.pb.h"

namespace tensorcast::otel {
namespace {

using tensorcast::otel::testing::OtelConfig;
struct Post {
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

// Answers the posts to each path with `statuses` in turn, and from then on with the last, one connection at a
// time.
class HttpServer {
 public:
  explicit HttpServer(std::vector<std::string> statuses) : statuses_(std::move(statuses)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~HttpServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }

  std::string endpoint() const { return absl::StrCat("http://127.0.0.1:", port_); }
  std::map<std::string, Post> posts() const {
    absl::MutexLock lock(&mutex_);
    return posts_;
  }
  size_t count(const std::string& path) const {
    absl::MutexLock lock(&mutex_);
    const auto found = counts_.find(path);
    return found == counts_.end() ? 0 : found->second;
  }

 private:
  void Serve() {
    while (true) {
      const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection < 0) return;
      Take(connection);
      close(connection);
    }
  }

  void Take(int connection) {
    std::string text;
    size_t head_end = std::string::npos;
    while ((head_end = text.find("\r\n\r\n")) == std::string::npos) {
      if (!ReadMore(connection, text)) return;
    }
    Post post;
    const std::vector<std::string> lines = absl::StrSplit(text.substr(0, head_end), "\r\n");
    for (const std::string& line : lines) {
      const std::pair<std::string, std::string> header = absl::StrSplit(line, absl::MaxSplits(": ", 1));
      post.headers[absl::AsciiStrToLower(header.first)] = header.second;
    }
    size_t length = 0;
    if (!absl::SimpleAtoi(post.headers["content-length"], &length)) return;
    while (text.size() < head_end + 4 + length) {
      if (!ReadMore(connection, text)) return;
    }
    post.body = text.substr(head_end + 4);
    const std::vector<std::string> request = absl::StrSplit(lines[0], ' ');
    std::string status;
    {
      absl::MutexLock lock(&mutex_);
      status = statuses_[std::min(counts_[request.at(1)]++, statuses_.size() - 1)];
      posts_.insert_or_assign(request.at(1), std::move(post));
    }
    const std::string answer =
        absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(write(connection, answer.data(), answer.size()), static_cast<ssize_t>(answer.size()));
  }

  static bool ReadMore(int connection, std::string& text) {
    char buffer[4096];
    const ssize_t count = read(connection, buffer, sizeof(buffer));
    if (count <= 0) return false;
    text.append(buffer, static_cast<size_t>(count));
    return true;
  }

  const std::vector<std::string> statuses_;
  int listener_ = -1;
  int port_ = 0;
  mutable absl::Mutex mutex_;
  std::map<std::string, Post> posts_ ABSL_GUARDED_BY(mutex_);  // by path
  std::map<std::string, size_t> counts_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

std::unique_ptr<Telemetry> Start(const std::string& endpoint, const std::string& more = "") {
  v1::OtelConfig config = OtelConfig(
      "enabled: true exporter: 'otlp_http' headers: 'x-team=infra' metric_interval: '1h' shutdown_timeout: "
      "'60s' resource_metrics: false " +
      more);
  config.set_endpoint(endpoint);
  auto telemetry = InitTelemetry(config, "daemon");
  EXPECT_TRUE(telemetry.ok()) << telemetry.status();
  return *std::move(telemetry);
}

TEST(HttpExporter, PostsEachSignalToItsPath) {
  HttpServer server({"200 OK"});
  auto telemetry = Start(server.endpoint() + "/base/");
  Span("A/B").End();
  LOG(INFO) << "over HTTP";
  telemetry->Shutdown();
  auto posts = server.posts();
  EXPECT_EQ(posts["/base/v1/traces"].headers["content-type"], "application/x-protobuf");
  EXPECT_EQ(posts["/base/v1/traces"].headers["x-team"], "infra");
  otlp::TraceRequest traces;
  ASSERT_TRUE(traces.ParseFromString(posts["/base/v1/traces"].body));
  EXPECT_EQ(traces.resource_spans(0).scope_spans(0).spans(0).name(), "A/B");
  otlp::LogsRequest logs;
  ASSERT_TRUE(logs.ParseFromString(posts["/base/v1/logs"].body));
  EXPECT_EQ(logs.resource_logs(0).scope_logs(0).log_records(0).body().text(), "over HTTP");
  EXPECT_EQ(posts.count("/base/v1/metrics"), 1u);
  EXPECT_EQ(telemetry->counters().of(sdk::Signal::kTraces).exported, 1u);
}

TEST(HttpExporter, AnAnswerThatIsAnErrorCountsAsALossAndIsNotAskedForAgain) {
  HttpServer server({"400 Bad Request"});
  auto telemetry = Start(server.endpoint());
  Span("A/B").End();
  const sdk::SignalCounters& traces = telemetry->counters().of(sdk::Signal::kTraces);
  EXPECT_FALSE(telemetry->Flush(absl::ZeroDuration()));
  while (traces.pending > 0) std::this_thread::yield();
  EXPECT_EQ(traces.exported, 0u);
  EXPECT_EQ(traces.dropped_export_failed, 1u);
  EXPECT_EQ(server.count("/v1/traces"), 1u);
}

TEST(HttpExporter, MetricsThatARestartingCollectorRefusesAreSentAgain) {
  HttpServer server({"503 Service Unavailable", "429 Too Many Requests", "200 OK"});
  auto telemetry = Start(server.endpoint());
  EXPECT_TRUE(telemetry->Flush(absl::Seconds(60)));
  // The reader collects once when it starts and once at its end, too: after it nothing is on its way.
  telemetry->Shutdown();
  const sdk::SignalCounters& metrics = telemetry->counters().of(sdk::Signal::kMetrics);
  EXPECT_GE(metrics.exported, 1u);
  EXPECT_EQ(metrics.export_failures, 2u);
  EXPECT_EQ(metrics.dropped(), 0u);
  EXPECT_EQ(server.count("/v1/metrics"), metrics.exported + 2);
}

TEST(HttpExporter, SpansAndLogLinesThatABusyCollectorRefusesAreSentAgain) {
  HttpServer server({"503 Service Unavailable", "429 Too Many Requests", "200 OK"});
  auto telemetry = Start(server.endpoint());
  Span("A/B").End();
  LOG(INFO) << "sent again";
  EXPECT_TRUE(telemetry->Flush(absl::Seconds(60)));
  for (const sdk::Signal signal : {sdk::Signal::kTraces, sdk::Signal::kLogs}) {
    const sdk::SignalCounters& counters = telemetry->counters().of(signal);
    EXPECT_EQ(counters.exported, 1u);
    EXPECT_EQ(counters.export_failures, 2u);
    EXPECT_EQ(counters.dropped(), 0u);
  }
  EXPECT_EQ(server.count("/v1/traces"), 3u);
  EXPECT_EQ(server.count("/v1/logs"), 3u);
  otlp::TraceRequest traces;
  ASSERT_TRUE(traces.ParseFromString(server.posts()["/v1/traces"].body));
  EXPECT_EQ(traces.resource_spans(0).scope_spans(0).spans(0).name(), "A/B") << "whole at the last try, too";
}

TEST(HttpExporter, ACollectorThatSaysWhenIsNotAskedBefore) {
  HttpServer server({"503 Service Unavailable\r\nRetry-After: 1", "200 OK"});
  auto telemetry = Start(server.endpoint());
  const SteadyTime start = SteadyNow();
  Span("A/B").End();
  EXPECT_TRUE(telemetry->Flush(absl::Seconds(60)));
  EXPECT_GE(SteadyNow() - start, absl::Seconds(1));
  EXPECT_EQ(telemetry->counters().of(sdk::Signal::kTraces).exported, 1u);
}

// retry_for is 10 s.
TEST(HttpExporter, WhatACollectorWantsTooLateIsGivenUpAtOnce) {
  HttpServer server({"503 Service Unavailable\r\nRetry-After: Wed, 01 Jan 2300 00:00:00 GMT"});
  auto telemetry = Start(server.endpoint(), "metrics: false");
  Span("A/B").End();
  (void)telemetry->Flush(absl::Seconds(60));
  EXPECT_EQ(telemetry->counters().of(sdk::Signal::kTraces).dropped_export_failed, 1u);
  EXPECT_EQ(server.count("/v1/traces"), 1u);
}

TEST(HttpExporter, WhoShutsDownTriesOnce) {
  HttpServer server({"503 Service Unavailable", "200 OK"});
  auto telemetry = Start(server.endpoint());
  Span("A/B").End();
  telemetry->Shutdown();
  EXPECT_EQ(telemetry->counters().of(sdk::Signal::kTraces).dropped(), 1u);
  EXPECT_EQ(server.count("/v1/traces"), 1u);
}

TEST(HttpExporter, ACollectorThatIsNotThereCountsAsALossOnceItWasTriedLongEnough) {
  std::string endpoint;
  {
    endpoint = HttpServer({"200 OK"}).endpoint();
  }
  auto telemetry = Start(endpoint, "retry_for: '300ms'");
  Span("A/B").End();
  (void)telemetry->Flush(absl::Seconds(60));
  const sdk::SignalCounters& traces = telemetry->counters().of(sdk::Signal::kTraces);
  EXPECT_EQ(traces.dropped_export_failed, 1u);
  EXPECT_GE(traces.export_failures, 2u);
}

// The SDK as it is packaged cannot, says so in its log with each export, and sends what it has as it is.
TEST(HttpExporter, CompressionIsRefusedInsteadOfIgnored) {
  const v1::OtelConfig config = OtelConfig("enabled: true exporter: 'otlp_http' compression: 'gzip'");
  const absl::Status refused = InitTelemetry(config, "daemon").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("observability.otel.compression"));
}

}  // namespace
}  // namespace tensorcast::otel
