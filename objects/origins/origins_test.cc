#include "objects/origins/origins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace tensorcast::objects {
namespace {

struct Case {
  const char* prefix;
  const char* uri;
  bool allowed;
};

TEST(Origins, Uri_IsAllowedBelowItsPrefixAlone) {
  for (const Case& one : std::vector<Case>{
           {"s3://bucket/models/", "s3://bucket/models/a", true},
           {"s3://bucket/models/", "s3://bucket/models/a/b.safetensors", true},
           {"s3://bucket/models/", "s3://bucket/models", true},
           {"s3://bucket/models", "s3://bucket/models/a", true},
           {"s3://bucket/models", "s3://bucket/models2", false},
           {"s3://bucket/models/", "s3://bucket/", false},
           {"s3://bucket/models/", "s3://bucket/Models/a", false},
           {"s3://bucket/models/", "s3://bucket2/models/a", false},
           {"s3://bucket/models/", "s3://buck/models/a", false},
           {"s3://bucket/models/", "gs://bucket/models/a", false},
           {"s3://bucket/models/", "s3://bucket/models/../other", false},
           {"s3://bucket/models/", "s3://bucket/models/%2e%2E/other", false},
           {"s3://bucket/models/", "s3://bucket/models//a", false},
           {"s3://bucket", "s3://bucket/any", true},
           {"s3://bucket/", "s3://bucket", true},
           {"gs://bucket/", "gs://bucket/a", true},
           {"https://host:8443/models/", "https://host:8443/models/a", true},
           {"https://host:8443/models/", "https://HOST:8443/models/a?x=1", true},
           {"https://host:8443/models/", "https://host/models/a", false},
           {"https://host:8443/models/", "http://host:8443/models/a", false},
           {"https://host:8443/models/", "https://host.evil:8443/models/a", false},
           {"https://host:8443/models/", "https://host:8443/models/%2e%2e/a", false},
           {"https://host:8443/models/", "https://host:8443/models%2fa", false},
           {"https://host:8443/models/", "https://host:8443/models/a%2fb", false},
           {"https://host/", "https://host:443/a", true},
           {"https://host/", "https://user@host/a", false},
           {"https://host/", "https://host\\@evil/a", false},
           {"hf://", "hf://org/name", true},
           {"hf://", "s3://org/name", false},
           {"hf://org/", "hf://org/name@main", true},
           {"hf://org/", "hf://org2/name", false},
           {"hf://org/name", "hf://org/name", true},
           {"hf://org/name", "hf://org/name2", false},
       }) {
    const auto origins = Origins::Parse({one.prefix});
    ASSERT_TRUE(origins.ok()) << origins.status();
    EXPECT_EQ(origins->Check(one.uri).ok(), one.allowed) << one.prefix << " and " << one.uri;
  }
}

TEST(Origins, EmptyList_RefusesAll) {
  for (const char* const uri :
       {"s3://bucket/a", "https://host/a", "hf://org/name", "file:///a", "", "bucket"}) {
    EXPECT_FALSE(Origins().Check(uri).ok()) << uri;
  }
  EXPECT_EQ(Origins().Check("s3://bucket/a").code(), absl::StatusCode::kPermissionDenied);
}

TEST(Origins, Refusal_LeavesOutQuery) {
  EXPECT_THAT(Origins().Check("https://host/a?sig=abc").message(),
              ::testing::Not(::testing::HasSubstr("abc")));
}

TEST(Origins, MalformedEntry_IsRefused) {
  for (const char* const prefix :
       {"", "bucket", "ftp://host/", "s3://", "s3://bucket/../", "https://host/a?b", "https://"}) {
    EXPECT_FALSE(Origins::Parse({prefix}).ok()) << prefix;
  }
}

TEST(Origins, Redirect_HasToBeListedItself) {
  const Origins origins = *Origins::Parse({"https://host/models/", "https://mirror/models/"});
  const Url from = *ParseUrl("https://host/models/a");
  EXPECT_TRUE(origins.CheckRedirect(from, *ParseUrl("https://mirror/models/a"), false).ok());
  EXPECT_FALSE(origins.CheckRedirect(from, *ParseUrl("https://mirror/other/a"), false).ok());
  EXPECT_FALSE(origins.CheckRedirect(from, *ParseUrl("http://169.254.169.254/latest"), false).ok());
}

TEST(Origins, RedirectOfHub_GoesByHttpsToOthers) {
  const Origins origins = *Origins::Parse({"hf://"}, {"http://127.0.0.1:8080"});
  const Url from = *ParseUrl("http://127.0.0.1:8080/org/name/resolve/main/a");
  const auto allowed = [&](std::string_view to) {
    return origins.CheckRedirect(from, *ParseUrl(to), true).ok();
  };
  EXPECT_TRUE(allowed("https://cdn.example/a?signed"));
  EXPECT_TRUE(allowed("http://127.0.0.1:8080/api/resolve-cache/a"));
  EXPECT_FALSE(allowed("http://cdn.example/a"));
  EXPECT_FALSE(allowed("https://127.0.0.1/a"));
  EXPECT_FALSE(allowed("https://[::ffff:169.254.169.254]/a"));
  EXPECT_FALSE(allowed("http://127.0.0.1:8081/a"));
}

TEST(Origins, LocalAddress_IsForEndpointsAndListedAddresses) {
  const Origins origins =
      *Origins::Parse({"http://127.0.0.1:9000/models/", "https://host/"}, {"http://minio:9000"});
  const auto local = [&](std::string_view url) { return origins.MayBeLocal(*ParseUrl(url)); };
  EXPECT_TRUE(local("http://127.0.0.1:9000/models/a"));
  EXPECT_TRUE(local("http://minio:9000/bucket/a"));
  EXPECT_FALSE(local("http://127.0.0.1:9000/other"));
  EXPECT_FALSE(local("http://127.0.0.1:9001/models/a"));
  EXPECT_FALSE(local("https://host/a"));  // a name that resolves to this host is a trap
}

}  // namespace
}  // namespace tensorcast::objects
