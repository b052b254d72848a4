#include "objects/s3/s3_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <span>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "objects/s3/s3_store.h"
#include "objects/testing/fake_s3.h"

namespace tensorcast::objects {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FakeReply;
using testing::FakeRequest;
using testing::FakeS3;
using ::testing::HasSubstr;
using ::testing::Not;

Credentials Keys(std::string_view token = "") {
  return {.access_key_id = "KEY", .secret_access_key = Secret("secret"), .session_token = Secret(token)};
}

// Gives the second keys after the first ones were refused.
class ExpiringCredentials final : public CredentialSource {
 public:
  absl::StatusOr<std::shared_ptr<const Credentials>> Get(const RequestContext&) override {
    return std::make_shared<const Credentials>(Keys(refused_ ? "new" : "old"));
  }
  void Refuse(const Credentials&) override { refused_ = true; }

 private:
  std::atomic<bool> refused_ = false;
};

std::shared_ptr<HttpClient> Http() {
  return std::make_shared<HttpClient>(
      HttpOptions{.limits = {.attempts = 2, .first_pause = absl::Milliseconds(1)}});
}

absl::StatusOr<std::string> ReadAll(S3Client& client, const S3Name& name, const S3Object& object,
                                    std::string_view version_id = "") {
  std::string bytes(object.bytes, '-');
  const absl::Status status = client.Read({}, name, version_id,
                                          {.offset = 0,
                                           .destination = std::as_writable_bytes(std::span(bytes)),
                                           .etag = object.etag,
                                           .object_bytes = object.bytes});
  if (!status.ok()) return status;
  return bytes;
}

TEST(S3Name, Uri_IsBucketAndKey) {
  const auto name = S3Name::Parse("s3", "s3://my-bucket/a b/+c%20");
  ASSERT_TRUE(name.ok());
  EXPECT_EQ(name->bucket, "my-bucket");
  EXPECT_EQ(name->key, "a b/+c%20");
  for (const char* const uri : {"s3://", "s3:///a", "s3://ab/a", "s3://a@host/a", "s3://host:80/a",
                                "gs://bucket/a", "s3://a..b/c", "s3://-ab/c", "s3://a?b=c/d"}) {
    EXPECT_FALSE(S3Name::Parse("s3", uri).ok()) << uri;
  }
}

TEST(S3Store, GoogleBucket_IsReadWithHmacKeys) {
  FakeS3 google({.region = "auto", .keys = Keys()});
  google.Put("models/a", "bytes");
  const auto store = MakeS3Store(Http(), {.scheme = "gs",
                                          .endpoint = google.url(),
                                          .region = "auto",
                                          .credentials = std::make_shared<FixedCredentials>(Keys())});
  const auto folder = store->Find({}, "gs://bucket/models");
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_THAT(*folder->folder->List({}), ElementsAre("a"));
  const auto found = store->Find({}, "gs://bucket/models/a");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->object->identity().uri, "gs://bucket/models/a");
  EXPECT_EQ(found->object->traits().lane, "gs");
  EXPECT_EQ(ReadBytes({}, *found->object, 0, 5).value_or(""), "bytes");
  EXPECT_TRUE(store->OpenAgain({}, found->object->identity()).ok());
  EXPECT_EQ(store->Find({}, "s3://bucket/models/a").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(S3Client, ExpiredSession_IsNamedWithTheRemedy) {
  bool over = false;
  FakeS3 s3({.keys = Keys(), .first = [&](const FakeRequest& request) -> std::optional<FakeReply> {
               if (!over) return std::nullopt;
               const bool head = request.method == "HEAD";
               return FakeReply{.status = 400,
                                .body = head ? "" : "<Error><Code>ExpiredToken</Code></Error>"};
             }});
  s3.Put("a", "bytes");
  S3Client client(Http(), {.endpoint = s3.url(), .credentials = std::make_shared<FixedCredentials>(Keys())});
  const auto object = client.Head({}, {"bucket", "a"});
  ASSERT_TRUE(object.ok()) << object.status();
  over = true;
  for (const absl::Status& status :
       {ReadAll(client, {"bucket", "a"}, *object).status(), client.Head({}, {"bucket", "a"}).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("s3://bucket/a"), HasSubstr("expired")));
  }
}

TEST(S3Client, OddNames_AreSignedAndRead) {
  FakeS3 s3({.keys = Keys()});
  S3Client client(Http(), {.endpoint = s3.url(), .credentials = std::make_shared<FixedCredentials>(Keys())});
  for (const char* const key :
       {"a b", "a+b", "a=b", "a~b", "\xc3\xa9", "(1)!*'", "a%20b", "a&b?c#d", "a//b", "a/../b"}) {
    s3.Put(key, key);
    const S3Name name{"bucket", key};
    const auto object = client.Head({}, name);
    ASSERT_TRUE(object.ok()) << object.status();
    EXPECT_EQ(ReadAll(client, name, *object).value_or(""), key);
  }
}

TEST(S3Client, LongList_IsReadToItsEnd) {
  FakeS3 s3({.page = 2});
  for (const char* const key : {"m/", "m/a", "m/b/1", "m/b/2", "m/c", "m/d <&>", "n"}) s3.Put(key, "");
  S3Client client(Http(), {.endpoint = s3.url()});
  const auto names = client.List({}, {"bucket", "m/"});
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_THAT(*names, ElementsAre("a", "b", "c", "d <&>"));
}

// The page of the server is larger than the list may be, so that hidden names alone could fill it.
TEST(S3Client, HiddenObjects_TakeNoRoomInListBelow) {
  FakeS3 s3({.page = 1000});
  for (int i = 0; i < 20; ++i) s3.Put(absl::StrCat("m/.git/", i), "");
  for (int i = 0; i < 20; ++i) s3.Put(absl::StrCat("m/a", i, "/"), "");
  for (const char* const key : {"m/config.json", "m/tokenizer/vocabulary.json"}) s3.Put(key, "");
  const auto store = MakeS3Store(Http(), {.endpoint = s3.url()});
  const auto found = store->Find({}, "s3://bucket/m");
  ASSERT_TRUE(found.ok()) << found.status();
  const auto paths = found->folder->ListBelow({}, 10);
  ASSERT_TRUE(paths.ok()) << paths.status();
  EXPECT_THAT(*paths, ElementsAre("config.json", "tokenizer/vocabulary.json"));
  // More than may be listed are more, and not fewer.
  const auto more = found->folder->ListBelow({}, 1);
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_GT(more->size(), 1);
}

TEST(S3Client, VersionedObject_IsReadByItsVersion) {
  FakeS3 s3({.keeps_versions = true});
  s3.Put("a", "old bytes");
  const auto store = MakeS3Store(Http(), {.endpoint = s3.url()});
  const auto found = store->Find({}, "s3://bucket/a");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->object->identity().version, "version:1");
  s3.Put("a", "new bytes");
  EXPECT_EQ(ReadBytes({}, *found->object, 0, 9).value_or(""), "old bytes");
  const auto again = store->OpenAgain({}, found->object->identity());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ReadBytes({}, **again, 0, 9).value_or(""), "old bytes");
}

TEST(S3Client, ExpiredCredentials_AreReplacedOnce) {
  FakeS3 s3({.keys = Keys("new")});
  s3.Put("a", "bytes");
  S3Client client(Http(), {.endpoint = s3.url(), .credentials = std::make_shared<ExpiringCredentials>()});
  const auto object = client.Head({}, {"bucket", "a"});
  ASSERT_TRUE(object.ok()) << object.status();
  EXPECT_EQ(s3.server().requests().size(), 2);
}

TEST(S3Client, RefusedCredentials_AreNamedAndNotPrinted) {
  FakeS3 s3({.keys = Keys()});
  s3.Put("a", "bytes");
  Credentials wrong = Keys();
  wrong.secret_access_key = Secret("wrong-secret");
  S3Client client(Http(), {.endpoint = s3.url(), .credentials = std::make_shared<FixedCredentials>(wrong)});
  const absl::Status status = ReadAll(client, {"bucket", "a"}, {.bytes = 5}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("read s3://bucket/a"), HasSubstr("SignatureDoesNotMatch"),
                                      Not(HasSubstr("wrong-secret")), Not(HasSubstr("Signature="))));
}

TEST(S3Client, AnonymousRequest_IsNotSigned) {
  FakeS3 s3;
  s3.Put("a", "bytes");
  S3Client client(Http(), {.endpoint = s3.url()});
  EXPECT_TRUE(client.Head({}, {"bucket", "a"}).ok());
  EXPECT_EQ(s3.server().requests()[0].Header("authorization"), "");
}

TEST(S3Client, OtherRegion_IsSignedForAgainAndKept) {
  FakeS3 s3({.region = "eu-west-1",
             .keys = Keys(),
             .first = [](const FakeRequest& request) -> std::optional<FakeReply> {
               if (absl::StrContains(request.Header("authorization"), "/eu-west-1/")) return std::nullopt;
               return FakeReply{.status = 301, .headers = {{"x-amz-bucket-region", "eu-west-1"}}};
             }});
  s3.Put("a", "bytes");
  S3Client client(Http(), {.endpoint = s3.url(), .credentials = std::make_shared<FixedCredentials>(Keys())});
  EXPECT_TRUE(client.Head({}, {"bucket", "a"}).ok());
  EXPECT_TRUE(client.Head({}, {"bucket", "a"}).ok());
  EXPECT_EQ(s3.server().requests().size(), 3);
}

TEST(S3Client, OtherEndpoint_IsAskedForAndSignedAgain) {
  FakeS3 second({.region = "eu-west-1", .keys = Keys()});
  second.Put("a", "bytes");
  FakeS3 first({.first = [&](const FakeRequest&) {
    return FakeReply{
        .status = 307,
        .headers = {{"Location", second.url() + "/other/secret"}, {"x-amz-bucket-region", "eu-west-1"}}};
  }});
  S3Options options{.endpoint = first.url(), .credentials = std::make_shared<FixedCredentials>(Keys())};
  EXPECT_EQ(S3Client(Http(), options).Head({}, {"bucket", "a"}).status().code(),
            absl::StatusCode::kPermissionDenied);
  std::vector<std::string> asked;
  options.may_follow = [&](const Url&, const Url& to) {
    asked.push_back(to.Text());
    return absl::OkStatus();
  };
  S3Client client(Http(), options);
  const auto object = client.Head({}, {"bucket", "a"});
  ASSERT_TRUE(object.ok()) << object.status();
  // The server chose the host, and not the object.
  EXPECT_THAT(asked, ElementsAre(second.url() + "/bucket/a"));
  EXPECT_EQ(ReadAll(client, {"bucket", "a"}, *object).value_or(""), "bytes");
}

TEST(S3Client, BucketOfVirtualHost_IsInFrontOfHost) {
  FakeS3 s3({.first = [](const FakeRequest&) { return FakeReply{.headers = {{"ETag", "\"1\""}}}; }});
  const std::string port = s3.url().substr(s3.url().rfind(':'));
  S3Client client(Http(),
                  {.endpoint = "http://localhost" + port, .addressing = S3Options::Addressing::kVirtualHost});
  const auto object = client.Head({}, {"bucket", "a b"});  // *.localhost is this host
  ASSERT_TRUE(object.ok()) << object.status();
  EXPECT_EQ(s3.server().requests()[0].Header("host"), "bucket.localhost" + port);
  EXPECT_EQ(s3.server().requests()[0].path, "/a%20b");
}

}  // namespace
}  // namespace tensorcast::objects
