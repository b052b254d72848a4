#include "objects/open.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "base/testing/temp_folder.h"
#include "core/testing/memory_objects.h"
#include "objects/origin_options.h"
#include "objects/testing/fake_s3.h"

namespace tensorcast::objects {
namespace {

using testing::FakeReply;
using testing::FakeRequest;
using testing::FakeS3;
using testing::FakeServer;
using testing::ServeBytes;

class OpenObjectsTest : public ::testing::Test {
 protected:
  OpenObjectsTest() {
    s3_.Put("models/a", "bytes");
    variables_ = {{"HOME", folder_.path()},
                  {"AWS_ENDPOINT_URL_S3", s3_.url()},
                  {"AWS_ACCESS_KEY_ID", "KEY"},
                  {"AWS_SECRET_ACCESS_KEY", "secret"}};
  }
  OpenOptions Options() const {
    return {.environment =
                [this](std::string_view name) {
                  const auto found = variables_.find(std::string(name));
                  return found == variables_.end() ? "" : found->second;
                },
            .limits = {.attempts = 1}};
  }
  std::unique_ptr<ObjectStore> OpenAll() const { return OpenObjects(Options()); }
  std::unique_ptr<ObjectStore> OpenListed(const std::vector<std::string>& origins) const {
    OpenOptions options = Options();
    options.origins = *Origins::Parse(origins, ConfiguredEndpoints(options.environment));
    return OpenObjects(std::move(options));
  }
  static std::string Read(const ObjectStore& store, const std::string& uri) {
    const auto found = store.Find({}, uri);
    if (!found.ok()) return absl::StatusCodeToString(found.status().code());
    const auto bytes = ReadBytes({}, *found->object, 0, found->object->identity().bytes);
    return bytes.ok() ? *bytes : absl::StatusCodeToString(bytes.status().code());
  }

  const tensorcast::testing::TempFolder folder_;
  std::map<std::string, std::string> variables_;
  FakeS3 s3_{{.keys = Credentials{.access_key_id = "KEY", .secret_access_key = Secret("secret")}}};
};

TEST(OriginOptions, OnlyVersionsReadByNameAndDeclaredPrefixes_AreImmutable) {
  const auto is_immutable = OriginOptions{.immutable_prefixes = {"s3://frozen/models/"}}.ParseImmutable();
  ASSERT_TRUE(is_immutable.ok()) << is_immutable.status();
  const std::string commit(40, 'a');
  EXPECT_TRUE((*is_immutable)({"s3://b/o", 1, "version:3"}));
  EXPECT_FALSE((*is_immutable)({"s3://b/o", 1, "version:null"})) << "a bucket that suspended its versions";
  EXPECT_FALSE((*is_immutable)({"s3://b/o", 1, "etag:\"3\""}));
  EXPECT_FALSE((*is_immutable)({"https://host/o", 1, "etag:\"3\""}));
  EXPECT_TRUE((*is_immutable)({"hf://org/name@" + commit + "/m.safetensors", 1, "sha256:00"}));
  EXPECT_FALSE((*is_immutable)({"hf://org/name@" + commit + "/m.safetensors", 1, "git:00"}));
  EXPECT_FALSE((*is_immutable)({"hf://org/name@main/m.safetensors", 1, "sha256:00"}));
  EXPECT_TRUE((*is_immutable)({"s3://b/archive/tc2-" + std::string(52, 'a') + ".tcpack", 1, "etag:\"3\""}))
      << "our own pack";
  EXPECT_TRUE((*is_immutable)({"s3://frozen/models/o", 1, "etag:\"3\""}));
  EXPECT_FALSE((*is_immutable)({"s3://frozen/models2/o", 1, "etag:\"3\""}));
  EXPECT_FALSE(OriginOptions{.immutable_prefixes = {"models"}}.ParseImmutable().ok());
}

TEST_F(OpenObjectsTest, S3Object_IsReadWithKeysOfEnvironment) {
  EXPECT_EQ(Read(*OpenAll(), "s3://bucket/models/a"), "bytes");
}

TEST_F(OpenObjectsTest, UnknownScheme_IsRefused) {
  EXPECT_EQ(Read(*OpenAll(), "file:///etc/passwd"), "INVALID_ARGUMENT");
  EXPECT_EQ(Read(*OpenAll(), "/etc/passwd"), "INVALID_ARGUMENT");
}

TEST_F(OpenObjectsTest, Path_IsOpenedByTheStoreOfFiles) {
  const auto files = std::make_shared<tensorcast::testing::MemoryObjects>();
  files->Put("/models/a", "of a file");
  files->Put("mem://a", "of no file");
  OpenOptions options = Options();
  options.origins = Origins();  // which says nothing of files
  options.files = files;
  const auto store = OpenObjects(std::move(options));
  EXPECT_EQ(Read(*store, "/models/a"), "of a file");
  EXPECT_EQ(Read(*store, "mem://a"), "INVALID_ARGUMENT");
}

TEST_F(OpenObjectsTest, UnlistedOrigin_IsRefusedWithoutARequest) {
  EXPECT_EQ(Read(*OpenListed({"s3://bucket/models/"}), "s3://bucket/models/a"), "bytes");
  const size_t requests = s3_.server().requests().size();
  EXPECT_EQ(Read(*OpenListed({"s3://bucket/other/"}), "s3://bucket/models/a"), "PERMISSION_DENIED");
  EXPECT_EQ(Read(*OpenListed({}), "s3://bucket/models/a"), "PERMISSION_DENIED");
  EXPECT_EQ(s3_.server().requests().size(), requests);
}

TEST_F(OpenObjectsTest, RedirectOutOfOrigins_IsRefused) {
  FakeServer inside([](const FakeRequest& request) { return ServeBytes(request, "secret", "\"1\""); });
  FakeServer server([&](const FakeRequest&) {
    return FakeReply{.status = 302, .headers = {{"Location", inside.url() + "/a"}}};
  });
  EXPECT_EQ(Read(*OpenListed({server.url() + "/"}), server.url() + "/a"), "PERMISSION_DENIED");
  EXPECT_EQ(Read(*OpenListed({server.url() + "/", inside.url() + "/"}), server.url() + "/a"), "secret");
}

TEST_F(OpenObjectsTest, OpenedObject_OutlivesItsStore) {
  std::shared_ptr<ObjectReader> object;
  {
    const auto store = OpenListed({"s3://bucket/"});
    object = store->Find({}, "s3://bucket/models/a")->object;
  }
  EXPECT_EQ(ReadBytes({}, *object, 0, 5).value_or(""), "bytes");
}

}  // namespace
}  // namespace tensorcast::objects
