#include "objects/s3/sigv4.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace tensorcast::objects {
namespace {

// AWS's documentation signs its examples with these.
Credentials ExampleKeys(std::string_view token = "") {
  return {.access_key_id = "AKIAIOSFODNN7EXAMPLE",
          .secret_access_key = Secret("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
          .session_token = Secret(token)};
}

std::string Authorization(std::string_view method, std::string_view target, const HttpHeaders& headers,
                          std::string_view body = "", std::string_view token = "") {
  const SigningScope scope{.region = "us-east-1",
                           .time = absl::FromCivil(absl::CivilSecond(2013, 5, 24), absl::UTCTimeZone())};
  const Url url = *ParseUrl(absl::StrCat("https://examplebucket.s3.amazonaws.com", target));
  for (const auto& [name, value] : SignV4(method, url, headers, body, ExampleKeys(token), scope)) {
    if (name == "authorization") return value;
  }
  return "";
}

std::string Expected(std::string_view signed_headers, std::string_view signature) {
  return absl::StrCat("AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, ",
                      "SignedHeaders=", signed_headers, ", Signature=", signature);
}

constexpr char kPlain[] = "host;x-amz-content-sha256;x-amz-date";

// The four examples of "Signature Calculations for the Authorization Header".
TEST(SigV4, PublishedExamples_HaveTheirSignatures) {
  EXPECT_EQ(Authorization("GET", "/test.txt", {{"Range", "bytes=0-9"}}),
            Expected("host;range;x-amz-content-sha256;x-amz-date",
                     "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"));
  EXPECT_EQ(Authorization(
                "PUT", "/test%24file.text",
                {{"Date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                "Welcome to Amazon S3."),
            Expected("date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
                     "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"));
  EXPECT_EQ(Authorization("GET", "/?lifecycle", {}),
            Expected(kPlain, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"));
  EXPECT_EQ(Authorization("GET", "/?max-keys=2&prefix=J", {}),
            Expected(kPlain, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
}

// What botocore's S3SigV4Auth computes for the same keys and time.
TEST(SigV4, OddNames_AreSignedAsBotocoreSignsThem) {
  EXPECT_EQ(Authorization("GET", EncodePath("/a b/+=~\xc3\xa9(1)!*'"), {}),
            Expected(kPlain, "778e7598f5843bfbb95fd1eb0d297f85b6414da40fd150df658d097b37451652"));
  EXPECT_EQ(
      Authorization(
          "GET",
          absl::StrCat("/?",
                       EncodeQuery({{"list-type", "2"}, {"prefix", "a b/+=~\xc3\xa9"}, {"delimiter", "/"}})),
          {}),
      Expected(kPlain, "7b934bbe17dbf8796c6a7c1f3a5346088683b07dd24bfe052aae9d1003a73b06"));
  EXPECT_EQ(Authorization("GET", absl::StrCat("/test.txt?", EncodeQuery({{"versionId", "a+b=="}})), {}),
            Expected(kPlain, "16cf28bc7c2f3487c3577f4c5f25612e3667419b6a1a9e618e518ebc29f8a52f"));
}

TEST(SigV4, SessionToken_IsSigned) {
  EXPECT_EQ(Authorization("GET", "/test.txt", {}, "", "TOKEN/+="),
            Expected("host;x-amz-content-sha256;x-amz-date;x-amz-security-token",
                     "f11686317987949e6023dbb85bb79d0f3554c74f78b81fdc41550d821aad7e8b"));
}

}  // namespace
}  // namespace tensorcast::objects
