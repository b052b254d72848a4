#include "objects/http/http_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "objects/testing/fake_server.h"

namespace tensorcast::objects {
namespace {

using testing::FakeReply;
using testing::FakeRequest;
using testing::FakeServer;
using testing::ServeBytes;

std::unique_ptr<ObjectStore> Store() { return MakeHttpStore(std::make_shared<HttpClient>(), {}); }

TEST(HttpStore, Object_IsReadInItsVersion) {
  std::string etag = "\"1\"";
  FakeServer server([&](const FakeRequest& request) { return ServeBytes(request, "0123456789", etag); });
  const auto store = Store();
  const auto found = store->Find({}, server.url() + "/a%20b");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->object->identity().version, "etag:\"1\"");
  EXPECT_TRUE(found->object->traits().traceable);
  EXPECT_EQ(ReadBytes({}, *found->object, 2, 3).value_or(""), "234");
  ASSERT_TRUE(store->OpenAgain({}, found->object->identity()).ok());
  etag = "\"2\"";
  const absl::Status changed = ReadBytes({}, *found->object, 2, 3).status();
  EXPECT_EQ(changed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(changed.message(), ::testing::HasSubstr(server.url() + "/a%20b"));
  EXPECT_EQ(store->OpenAgain({}, found->object->identity()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(HttpStore, ObjectWithoutEtag_IsComparedByDate) {
  std::string modified = "Wed, 01 Jan 2025 00:00:00 GMT";
  FakeServer server([&](const FakeRequest& request) {
    FakeReply reply = ServeBytes(request, "0123456789", "");
    reply.headers[0] = {"Last-Modified", modified};
    return reply;
  });
  const auto found = Store()->Find({}, server.url() + "/a");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->object->traits().traceable);
  EXPECT_TRUE(found->object->CheckUnchanged({}).ok());
  modified = "Wed, 01 Jan 2025 00:00:01 GMT";
  EXPECT_EQ(found->object->CheckUnchanged({}).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(HttpStore, Folder_OpensButDoesNotList) {
  FakeServer server([](const FakeRequest& request) { return ServeBytes(request, request.path, "\"1\""); });
  const auto found = Store()->Find({}, server.url() + "/models/");
  ASSERT_TRUE(found.ok()) << found.status();
  const auto object = found->folder->Open({}, "a b");
  ASSERT_TRUE(object.ok()) << object.status();
  EXPECT_EQ((*object)->identity().uri, server.url() + "/models/a%20b");
  EXPECT_EQ(found->folder->List({}).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(found->folder->Open({}, "../a").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(HttpStore, SignedUrl_IsRefusedWithoutItsQuery) {
  const absl::Status status = Store()->Find({}, "https://host/a?sig=abc").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), ::testing::Not(::testing::HasSubstr("abc")));
}

}  // namespace
}  // namespace tensorcast::objects
