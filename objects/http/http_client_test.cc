#include "objects/http/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <span>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/testing/temp_folder.h"
#include "objects/testing/fake_server.h"
#include "security/testing/address_certificate.h"

namespace tensorcast::objects {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FakeReply;
using testing::FakeRequest;
using testing::FakeServer;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::ServeBytes;

constexpr HttpLimits kQuick = {.stall = absl::Milliseconds(300),
                               .attempts = 3,
                               .first_pause = absl::Milliseconds(1),
                               .max_pause = absl::Milliseconds(10)};

class HttpClientTest : public ::testing::Test {
 protected:
  HttpRequest Request(const FakeServer& server, std::string_view path = "/a") const {
    return {.subject = "read the object", .url = *ParseUrl(absl::StrCat(server.url(), path))};
  }
  HttpRequest Ranged(const FakeServer& server, uint64_t offset, size_t bytes) {
    read_.assign(bytes, '-');
    HttpRequest request = Request(server);
    request.read = {.offset = offset,
                    .destination = std::as_writable_bytes(std::span(read_)),
                    .etag = "\"one\"",
                    .object_bytes = 10};
    return request;
  }
  absl::Status Code(const HttpRequest& request) { return client_.Fetch({}, request).status(); }

  HttpClient client_{{.limits = kQuick}};
  std::string read_;
};

TEST_F(HttpClientTest, Requests_ShareKeptConnection) {
  FakeServer server([](const FakeRequest&) { return FakeReply{.body = "bytes"}; });
  for (int i = 0; i < 3; ++i) {
    const auto reply = client_.Fetch({}, Request(server));
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->status, 200);
    EXPECT_EQ(reply->body, "bytes");
  }
  EXPECT_EQ(server.connections(), 1);
  EXPECT_EQ(client_.counts().requests, 3);
  EXPECT_EQ(client_.counts().bytes, 15);
}

TEST_F(HttpClientTest, Range_IsReadIntoCallersMemory) {
  FakeServer server([](const FakeRequest& request) { return ServeBytes(request, "0123456789", "\"one\""); });
  const auto reply = client_.Fetch({}, Ranged(server, 3, 4));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(read_, "3456");
  EXPECT_EQ(server.requests()[0].Header("range"), "bytes=3-6");
  EXPECT_EQ(server.requests()[0].Header("if-match"), "\"one\"");
}

TEST_F(HttpClientTest, ShortBody_IsContinuedWhereItEnded) {
  std::atomic<int> calls = 0;
  FakeServer server([&](const FakeRequest& request) {
    FakeReply reply = ServeBytes(request, "0123456789", "\"one\"");
    if (++calls == 1) reply.close_after = 3;
    return reply;
  });
  const auto reply = client_.Fetch({}, Ranged(server, 0, 10));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(read_, "0123456789");
  EXPECT_EQ(server.requests()[1].Header("range"), "bytes=3-9");
  EXPECT_EQ(client_.counts().retries_after_lost_connection, 1);
}

TEST_F(HttpClientTest, ShortBodyOfServerWithoutRanges_IsReadFromStart) {
  std::atomic<int> calls = 0;
  FakeServer server([&](const FakeRequest&) {
    FakeReply reply{.body = "0123456789"};
    if (++calls == 1) reply.close_after = 3;
    return reply;
  });
  const auto reply = client_.Fetch({}, Ranged(server, 0, 10));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(read_, "0123456789");
  EXPECT_EQ(server.requests().size(), 2);
}

TEST_F(HttpClientTest, ServerThatNeverAnswered_IsGivenUpSoon) {
  std::string path;
  {
    const FakeServer server([](const FakeRequest&) { return FakeReply(); });
    path = server.url();
  }
  HttpRequest request{.subject = "read the object", .url = *ParseUrl(path)};
  HttpClient patient({.limits = {.attempts = 1000, .first_pause = absl::Milliseconds(1)}});
  const absl::Status gone = patient.Fetch({}, request).status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(gone.message()), AllOf(HasSubstr("after 2 attempts"), HasSubstr(path)));
  EXPECT_EQ(patient.counts().requests, 2);
}

TEST_F(HttpClientTest, ServerThatAnsweredOnce_GetsAllAttempts) {
  auto server = std::make_unique<FakeServer>([](const FakeRequest&) { return FakeReply(); });
  const HttpRequest request = Request(*server);
  ASSERT_TRUE(client_.Fetch({}, request).ok());
  server.reset();
  EXPECT_THAT(std::string(Code(request).message()), HasSubstr("after 3 attempts"));
}

TEST_F(HttpClientTest, ChangedObject_IsRefusedByServersIfMatch) {
  FakeServer server([](const FakeRequest& request) { return ServeBytes(request, "9876543210", "\"two\""); });
  const auto reply = client_.Fetch({}, Ranged(server, 0, 10));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(StatusOfReply("read the object", *reply).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(read_, "----------");
}

TEST_F(HttpClientTest, ChangedObject_IsRefusedWhereServerIgnoresIfMatch) {
  FakeServer server([](FakeRequest request) {
    std::erase_if(request.headers, [](const auto& header) { return header.first == "if-match"; });
    return ServeBytes(request, "9876543210", "\"two\"");
  });
  const absl::Status status = Code(Ranged(server, 0, 10));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("read the object"));
  EXPECT_EQ(read_, "----------");
}

TEST_F(HttpClientTest, ObjectOfOtherSize_IsRefusedWithoutEtag) {
  FakeServer server([](const FakeRequest& request) {
    FakeReply reply = ServeBytes(request, "0123456789a", "\"one\"");
    reply.headers.erase(reply.headers.begin());
    return reply;
  });
  EXPECT_EQ(Code(Ranged(server, 0, 10)).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(HttpClientTest, ServerWithoutRanges_IsNamedAsSuch) {
  FakeServer server([](const FakeRequest&) { return FakeReply{.body = "0123456789"}; });
  const absl::Status status = Code(Ranged(server, 2, 4));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_EQ(read_, "----");
  EXPECT_TRUE(Code(Ranged(server, 0, 10)).ok());  // all of it is the range
  EXPECT_EQ(read_, "0123456789");
}

TEST_F(HttpClientTest, RangeWithStatus200_IsReadAsItsHeaderSays) {
  FakeServer server([](const FakeRequest& request) {
    FakeReply reply = ServeBytes(request, "0123456789", "\"one\"");
    reply.status = 200;  // as rclone does
    return reply;
  });
  ASSERT_TRUE(Code(Ranged(server, 3, 4)).ok());
  EXPECT_EQ(read_, "3456");
}

TEST_F(HttpClientTest, UnavailableServer_IsAskedBoundedTimes) {
  FakeServer server([](const FakeRequest&) { return FakeReply{.status = 503}; });
  const absl::Status status = Code(Request(server));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("read the object: the server answered 503, after 3 attempts"));
  EXPECT_EQ(server.requests().size(), 3);
  EXPECT_EQ(client_.counts().retries_after_status, 2);
}

TEST_F(HttpClientTest, TooManyRequests_IsRetriedToSuccess) {
  std::atomic<int> calls = 0;
  FakeServer server([&](const FakeRequest&) {
    return ++calls < 3 ? FakeReply{.status = 429, .headers = {{"Retry-After", "1"}}} : FakeReply{.body = "x"};
  });
  EXPECT_TRUE(Code(Request(server)).ok());
  EXPECT_EQ(client_.counts().retries_after_status, 2);
}

TEST_F(HttpClientTest, SlowTransferWithProgress_Lives) {
  FakeServer server([](const FakeRequest&) {
    return FakeReply{.body = std::string(10, 'x'), .piece_bytes = 1, .before_piece = [] {
                       std::this_thread::sleep_for(std::chrono::milliseconds(60));  // a slow server
                     }};
  });
  const auto reply = client_.Fetch({}, Request(server));  // takes twice the stall limit
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->body.size(), 10);
  EXPECT_EQ(client_.counts().retries_after_timeout, 0);
}

TEST_F(HttpClientTest, TransferWithoutProgress_TimesOut) {
  absl::Notification over;
  FakeServer server([&](const FakeRequest&) {
    return FakeReply{.body = "xx", .piece_bytes = 1, .before_piece = [&, first = true]() mutable {
                       if (!std::exchange(first, false)) over.WaitForNotification();
                     }};
  });
  const absl::Status status = Code(Request(server));
  over.Notify();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("no byte arrived for 300ms"));
  EXPECT_EQ(client_.counts().retries_after_timeout, 2);
}

TEST_F(HttpClientTest, CancelledRequest_EndsAtOnce) {
  absl::Notification asked, over;
  FakeServer server([&](const FakeRequest&) {
    asked.Notify();
    over.WaitForNotification();
    return FakeReply{};
  });
  const RequestContext context;
  std::thread canceller([&] {
    asked.WaitForNotification();
    context.cancellation.Cancel();
  });
  HttpRequest request = Request(server);
  request.limits = HttpLimits{.stall = absl::Hours(1)};
  EXPECT_EQ(client_.Fetch(context, request).status().code(), absl::StatusCode::kCancelled);
  canceller.join();
  over.Notify();
}

TEST_F(HttpClientTest, Redirect_IsAskedForAndGetsNoHeaders) {
  FakeServer other([](const FakeRequest& request) { return ServeBytes(request, "0123456789", "\"one\""); });
  FakeServer server([&](const FakeRequest&) {
    return FakeReply{.status = 302, .headers = {{"Location", other.url() + "/b?signed=1"}}};
  });
  HttpRequest request = Ranged(server, 2, 3);
  request.headers = {{"X-Own", "1"}};
  request.authorize = [](const Url&) { return HttpHeaders{{"Authorization", "Bearer token"}}; };
  std::vector<std::string> asked;
  request.may_follow = [&](const Url&, const Url& to) {
    asked.push_back(to.Text());
    return absl::OkStatus();
  };
  const auto reply = client_.Fetch({}, request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(read_, "234");
  EXPECT_THAT(asked, ElementsAre(other.url() + "/b?signed=1"));
  EXPECT_EQ(reply->url.Text(), other.url() + "/b?signed=1");
  EXPECT_EQ(server.requests()[0].Header("authorization"), "Bearer token");
  EXPECT_EQ(other.requests()[0].Header("authorization"), "");
  EXPECT_EQ(other.requests()[0].Header("x-own"), "");
}

TEST_F(HttpClientTest, RefusedRedirect_IsNotFollowed) {
  FakeServer other([](const FakeRequest&) { return FakeReply{}; });
  FakeServer server(
      [&](const FakeRequest&) { return FakeReply{.status = 307, .headers = {{"Location", other.url()}}}; });
  HttpRequest request = Request(server);
  request.may_follow = [](const Url&, const Url&) { return absl::PermissionDeniedError("not listed"); };
  EXPECT_EQ(Code(request).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(other.requests(), IsEmpty());
}

TEST_F(HttpClientTest, RedirectLoop_Ends) {
  FakeServer server(
      [](const FakeRequest&) { return FakeReply{.status = 302, .headers = {{"Location", "/a"}}}; });
  HttpRequest request = Request(server);
  request.may_follow = [](const Url&, const Url&) { return absl::OkStatus(); };
  EXPECT_THAT(Code(request).message(), HasSubstr("more than 10 redirects"));
}

TEST_F(HttpClientTest, LocalAddress_IsRefusedWhereItMayNotBe) {
  FakeServer server([](const FakeRequest&) { return FakeReply{}; });
  ASSERT_TRUE(Code(Request(server)).ok());  // leaves a connection, which the next one may not use
  HttpRequest request = Request(server);
  request.may_be_local = [](const Url&) { return false; };
  const absl::Status status = Code(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_EQ(server.requests().size(), 1);
}

TEST_F(HttpClientTest, Certificate_IsCheckedAgainstCaBundle) {
  const tensorcast::testing::TempFolder folder;
  const auto files = security::testing::MakeAddressCertificate(folder.path(), "127.0.0.1");
  const testing::FakeTls tls{files.certificate, files.key};
  FakeServer server([](const FakeRequest&) { return FakeReply{.body = "safe"}; }, &tls);
  EXPECT_EQ(Code(Request(server)).code(), absl::StatusCode::kPermissionDenied);
  HttpClient trusting({.ca_bundle = files.certificate, .limits = kQuick});
  const auto reply = trusting.Fetch({}, Request(server));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->body, "safe");
}

TEST_F(HttpClientTest, SignedUrl_IsNotInErrors) {
  FakeServer server([](const FakeRequest&) { return FakeReply{.status = 500}; });
  const absl::Status status = Code(Request(server, "/a?X-Amz-Signature=abc"));
  EXPECT_THAT(status.message(), Not(HasSubstr("abc")));
}

TEST(StatusOfReply, Status_HasCodeThatCallerActsOn) {
  const auto code = [](int status) { return StatusOfReply("read a", {.status = status}).code(); };
  EXPECT_EQ(code(206), absl::StatusCode::kOk);
  EXPECT_EQ(code(401), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(code(403), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(code(404), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(412), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code(400), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace tensorcast::objects
