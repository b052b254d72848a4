#include "objects/s3/s3_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "objects/testing/fake_s3.h"

namespace tensorcast::objects {
namespace s3_writer_test {
namespace {

using ::testing::ElementsAre;
using testing::FakeReply;
using testing::FakeRequest;
using testing::FakeS3;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kUri[] = "s3://bucket/models/a b+c.tcpack";
constexpr char kKey[] = "models/a b+c.tcpack";

Credentials Keys() { return {.access_key_id = "KEY", .secret_access_key = Secret("secret")}; }

std::string Bytes(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 31 + i / 251);
  return bytes;
}

FillBytes FillFrom(const std::string& bytes) {
  return [&bytes](const RequestContext&, uint64_t offset, HostSpan destination) {
    std::memcpy(destination.data(), bytes.data() + offset, destination.size());
    return absl::OkStatus();
  };
}

bool IsPart(const FakeRequest& request, int number) {
  return request.method == "PUT" && request.Query("partNumber") == absl::StrCat(number);
}
bool IsFinish(const FakeRequest& request) {
  return request.method == "POST" && !request.Query("uploadId").empty();
}
bool IsAbort(const FakeRequest& request) {
  return request.method == "DELETE" && !request.Query("uploadId").empty();
}

FakeReply ErrorReply(int status, std::string_view code) {
  return {.status = status,
          .body = absl::StrCat("<Error><Code>", code, "</Code><Message>told</Message></Error>")};
}

// A store that answers some requests otherwise, and a writer of parts of 1000 bytes.
class S3WriterTest : public ::testing::Test {
 protected:
  void Start(std::function<std::optional<FakeReply>(const FakeRequest&)> first = nullptr) {
    FakeS3::Options options;
    options.keys = Keys();
    options.page = 2;
    options.first = std::move(first);
    s3_ = std::make_unique<FakeS3>(std::move(options));
    S3Options client;
    client.endpoint = s3_->url();
    client.credentials = std::make_shared<FixedCredentials>(Keys());
    const auto http = std::make_shared<HttpClient>(
        HttpOptions{.limits = {.attempts = 2, .first_pause = absl::Milliseconds(1)}});
    S3Writer::Options parts;
    parts.part_bytes = 1000;
    parts.parts_at_once = 3;
    writer_ = std::make_unique<S3Writer>(std::make_shared<S3Client>(http, client), parts);
  }
  absl::StatusOr<ObjectIdentity> Write(const RequestContext& context = {}) {
    return writer_->Write(context, kUri, bytes_.size(), FillFrom(bytes_));
  }
  // Of requests that the store got.
  int Count(bool (*is)(const FakeRequest&)) {
    const std::vector<FakeRequest> requests = s3_->server().requests();
    return static_cast<int>(std::ranges::count_if(requests, is));
  }

  const std::string bytes_ = Bytes(4500);
  std::unique_ptr<FakeS3> s3_;
  std::unique_ptr<S3Writer> writer_;
};

TEST_F(S3WriterTest, LargeObject_IsWrittenInSignedParts) {
  Start();
  const auto written = Write();
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_EQ(written->uri, kUri);
  EXPECT_EQ(written->bytes, bytes_.size());
  EXPECT_THAT(written->version, HasSubstr("-5\"")) << "five parts";
  EXPECT_EQ(s3_->Find(kKey), bytes_);
  EXPECT_EQ(s3_->uploads(), 0);
}

TEST_F(S3WriterTest, SmallObject_IsWrittenAtOnce) {
  Start();
  const std::string small = Bytes(1000);
  const auto written = writer_->Write({}, kUri, small.size(), FillFrom(small));
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_EQ(s3_->Find(kKey), small);
  ASSERT_TRUE(writer_->Write({}, kUri, 0, FillFrom(small)).ok());
  EXPECT_EQ(s3_->Find(kKey), "");
}

TEST_F(S3WriterTest, BusyOrDamagingStore_IsSentPartsAgain) {
  std::atomic<int> busy = 0, damaged = 0;
  Start([&](const FakeRequest& request) -> std::optional<FakeReply> {
    if (IsPart(request, 2) && busy++ == 0) return ErrorReply(503, "SlowDown");
    if (IsPart(request, 3) && damaged++ == 0) return ErrorReply(400, "XAmzContentSHA256Mismatch");
    return std::nullopt;
  });
  ASSERT_TRUE(Write().ok());
  EXPECT_EQ(s3_->Find(kKey), bytes_);
  EXPECT_EQ(busy, 2);
  EXPECT_EQ(damaged, 2);
}

TEST_F(S3WriterTest, PartThatFails_AbortsTheUpload) {
  Start([](const FakeRequest& request) -> std::optional<FakeReply> {
    if (IsPart(request, 4)) return ErrorReply(403, "AccessDenied");
    return std::nullopt;
  });
  const auto written = Write();
  EXPECT_EQ(written.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(written.status().message(), HasSubstr("part 4"));
  EXPECT_THAT(s3_->keys(), IsEmpty());
  EXPECT_EQ(s3_->uploads(), 0);
}

TEST_F(S3WriterTest, SourceThatFails_AbortsTheUpload) {
  Start();
  const auto written =
      writer_->Write({}, kUri, bytes_.size(), [](const RequestContext&, uint64_t offset, HostSpan) {
        return offset == 2000 ? absl::DataLossError("gone") : absl::OkStatus();
      });
  EXPECT_EQ(written.status(), absl::DataLossError("gone"));
  EXPECT_EQ(s3_->uploads(), 0);
}

TEST_F(S3WriterTest, FinishThatFails_AbortsTheUpload) {
  Start([](const FakeRequest& request) -> std::optional<FakeReply> {
    // S3 sends the status before it knows how the assembly ends.
    if (IsFinish(request)) return ErrorReply(200, "InternalError");
    return std::nullopt;
  });
  const auto written = Write();
  EXPECT_EQ(written.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(written.status().message(), HasSubstr("InternalError"));
  EXPECT_EQ(Count(IsFinish), 3);
  EXPECT_THAT(s3_->keys(), IsEmpty());
  EXPECT_EQ(s3_->uploads(), 0);
}

TEST_F(S3WriterTest, LostReplyToFinish_IsNotAFailure) {
  std::atomic<int> finishes = 0;
  Start([&](const FakeRequest& request) -> std::optional<FakeReply> {
    if (!IsFinish(request)) return std::nullopt;
    // The upload is finished twice: what comes of the first time is not told, and then it is gone.
    return ++finishes == 1 ? FakeReply{.status = 500} : ErrorReply(404, "NoSuchUpload");
  });
  const auto lost = Write();
  EXPECT_EQ(lost.status().code(), absl::StatusCode::kNotFound) << "there is no such object";
  s3_->PutParts(kKey, bytes_, 5);
  finishes = 0;
  const auto written = Write();
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_EQ(finishes, 2);
}

TEST_F(S3WriterTest, UploadThatAnotherProcessEnded_IsAnError) {
  Start([](const FakeRequest& request) -> std::optional<FakeReply> {
    if (IsFinish(request)) return ErrorReply(404, "NoSuchUpload");
    return std::nullopt;
  });
  EXPECT_EQ(Write().status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(s3_->keys(), IsEmpty());
}

TEST_F(S3WriterTest, CancelledWrite_AbortsTheUpload) {
  RequestContext context;
  Start([&](const FakeRequest& request) -> std::optional<FakeReply> {
    if (IsPart(request, 2)) context.cancellation.Cancel();
    return std::nullopt;
  });
  EXPECT_EQ(Write(context).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(s3_->uploads(), 0);
  EXPECT_THAT(s3_->keys(), IsEmpty());
}

TEST_F(S3WriterTest, AbortThatFails_SaysThatPartsStay) {
  Start([](const FakeRequest& request) -> std::optional<FakeReply> {
    if (IsPart(request, 1) || IsAbort(request)) return ErrorReply(403, "AccessDenied");
    return std::nullopt;
  });
  EXPECT_THAT(Write().status().message(), HasSubstr("remove the parts with `tensorcast gc`"));
  EXPECT_EQ(s3_->uploads(), 1);
}

TEST_F(S3WriterTest, LeftUploads_AreListedAndAborted) {
  std::atomic<bool> abort_fails = true;
  Start([&](const FakeRequest& request) -> std::optional<FakeReply> {
    if (abort_fails && (IsPart(request, 1) || IsAbort(request))) return ErrorReply(403, "AccessDenied");
    return std::nullopt;
  });
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(Write().ok());
  abort_fails = false;
  const auto uploads = writer_->ListUploads({}, "s3://bucket/models/");
  ASSERT_TRUE(uploads.ok()) << uploads.status();
  ASSERT_THAT(*uploads, SizeIs(5)) << "three pages";
  EXPECT_LT(absl::AbsDuration(absl::Now() - uploads->front().begun), absl::Minutes(1));
  EXPECT_THAT(*writer_->ListUploads({}, "s3://bucket/other/"), IsEmpty());
  for (const S3Upload& upload : *uploads) {
    EXPECT_EQ(upload.uri, kUri);
    EXPECT_TRUE(writer_->Abort({}, upload).ok());
    EXPECT_TRUE(writer_->Abort({}, upload).ok()) << "it is gone";
  }
  EXPECT_EQ(s3_->uploads(), 0);
}

TEST_F(S3WriterTest, Objects_AreListedAndRemoved) {
  Start();
  for (const char* const key : {"a/1", "a/2/3", "a/4&", "b"}) s3_->Put(key, "12");
  const auto objects = writer_->List({}, "s3://bucket/a/");
  ASSERT_TRUE(objects.ok()) << objects.status();
  std::vector<std::string> uris;
  for (const StoredObject& object : *objects) {
    uris.push_back(object.uri);
    EXPECT_EQ(object.bytes, 2);
    EXPECT_LT(absl::AbsDuration(absl::Now() - object.written), absl::Minutes(1));
    EXPECT_TRUE(writer_->Remove({}, object.uri).ok());
    EXPECT_TRUE(writer_->Remove({}, object.uri).ok()) << "it is gone";
  }
  EXPECT_THAT(uris, ElementsAre("s3://bucket/a/1", "s3://bucket/a/2/3", "s3://bucket/a/4&"));
  EXPECT_THAT(s3_->keys(), ElementsAre("b"));
}

}  // namespace
}  // namespace s3_writer_test
}  // namespace tensorcast::objects
