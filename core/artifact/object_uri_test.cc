#include "core/artifact/object_uri.h"

#include "gtest/gtest.h"

namespace tensorcast::object_uri_test {
namespace {

TEST(ObjectUri, SchemeAndSlashes_TellAUriFromAPath) {
  EXPECT_TRUE(IsObjectUri("s3://bucket/prefix"));
  EXPECT_FALSE(IsObjectUri("./s3://bucket"));
  EXPECT_FALSE(IsObjectUri("/models/a"));
  EXPECT_FALSE(IsObjectUri("://a"));
}

TEST(ObjectUri, PasswordAndSignature_AreNotShown) {
  EXPECT_EQ(ShownUri("https://user:pass@host:8443/m?X-Amz-Signature=1"), "https://***@host:8443/m?***");
  EXPECT_EQ(ShownUri("https://a@b:c@host"), "https://***@host");
  EXPECT_EQ(ShownUri("s3://key:secret@bucket/m"), "s3://***@bucket/m");
  for (const char* const secret : {"https://u:p@host/m", "http://host/m?a", "hf://t@org/name"}) {
    EXPECT_NE(SecretIn(secret), "") << secret;
  }
}

TEST(ObjectUri, TextWithoutSecret_IsShownAsItIs) {
  for (const char* const text : {"hf://org/name@main/a b", "s3://bucket/what?/m@1", "https://host/@a",
                                 "/p?a@b", "gs://bucket", "https://host"}) {
    EXPECT_EQ(ShownUri(text), text);
    EXPECT_EQ(SecretIn(text), "") << text;
  }
}

}  // namespace
}  // namespace tensorcast::object_uri_test
