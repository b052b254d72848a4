#include "objects/http/url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include "absl/strings/str_cat.h"
#include "objects/http/local_address.h"
#include "objects/http/secret.h"

namespace tensorcast::objects {
namespace {

std::string Normal(std::string_view text) {
  const auto url = ParseUrl(text);
  return url.ok() ? url->Text() : "refused";
}

TEST(Url, Text_HasOneForm) {
  EXPECT_EQ(Normal("HTTPS://Host.Example:443/A%20b?q=1&r"), "https://host.example/A%20b?q=1&r");
  EXPECT_EQ(Normal("http://host:8080"), "http://host:8080/");
  EXPECT_EQ(Normal("http://[::1]:9000/a"), "http://[::1]:9000/a");
  EXPECT_EQ(Normal("http://host?q"), "http://host/?q");
}

TEST(Url, AmbiguousText_IsRefused) {
  for (const char* const text : {"",
                                 "host/a",
                                 "ftp://host/",
                                 "http://",
                                 "http:///a",
                                 "http://user@host/",
                                 "http://a@b@c/",
                                 "http://host:/a",
                                 "http://host:0/",
                                 "http://host:65536/",
                                 "http://host:8a/",
                                 "http://host:-1/",
                                 "http://[::1/",
                                 "http://ho st/",
                                 "http://host/a b",
                                 "http://host\\a/",
                                 "http://host/a\nb",
                                 "http://host/#f",
                                 "http://h%6fst/",
                                 "http://host/\xc3\xa9",
                                 "http://host/\x7f"}) {
    EXPECT_EQ(Normal(text), "refused") << text;
  }
}

TEST(Url, Error_LeavesOutQueryAndPassword) {
  EXPECT_THAT(ParseUrl("ftp://h/?sig=abc").status().message(), ::testing::Not(::testing::HasSubstr("abc")));
  EXPECT_THAT(ParseUrl("http://u:abc@h/").status().message(), ::testing::Not(::testing::HasSubstr("abc")));
}

TEST(Url, Location_IsResolvedAgainstItsRequest) {
  const Url base = *ParseUrl("https://host:8443/a/b?q");
  EXPECT_EQ(ResolveLocation(base, "c")->Text(), "https://host:8443/a/c");
  EXPECT_EQ(ResolveLocation(base, "/c?r")->Text(), "https://host:8443/c?r");
  EXPECT_EQ(ResolveLocation(base, "//other/c")->Text(), "https://other/c");
  EXPECT_EQ(ResolveLocation(base, "http://other/c")->Text(), "http://other/c");
  EXPECT_EQ(ResolveLocation(base, "/c?u=http://x/")->Text(), "https://host:8443/c?u=http://x/");
  EXPECT_FALSE(ResolveLocation(base, "file:///etc/passwd").ok());
}

TEST(Url, Encoding_KeepsUnreservedBytesOnly) {
  EXPECT_EQ(EncodePath("/a b/+=~\xc3\xa9(1)!*'"), "/a%20b/%2B%3D~%C3%A9%281%29%21%2A%27");
  EXPECT_EQ(EncodeQuery({{"prefix", "a/b"}, {"x", ""}}), "prefix=a%2Fb&x=");
  EXPECT_EQ(DecodePercent("a%20b%2Fc%"), "a b/c%");
}

TEST(LocalAddress, EverySpelling_IsRecognised) {
  for (const char* const host :
       {"localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.1", "0x7f000001", "2130706433", "0.0.0.0",
        "0", "169.254.169.254", "::1", "::", "fe80::1", "::ffff:127.0.0.1", "::127.0.0.1", "fd00:ec2::254",
        "64:ff9b::169.254.169.254"}) {
    EXPECT_TRUE(IsLocalHost(host)) << host;
  }
  for (const char* const host :
       {"host", "localhost.example", "10.0.0.1", "128.0.0.1", "2001:db8::1", "::ffff:10.0.0.1"}) {
    EXPECT_FALSE(IsLocalHost(host)) << host;
  }
}

TEST(Secret, Text_IsNotPrinted) {
  const Secret secret("abc");
  EXPECT_EQ(absl::StrCat("key ", secret), "key [secret]");
  EXPECT_EQ(secret.Reveal(), "abc");
  EXPECT_TRUE(Secret().empty());
  EXPECT_EQ(Secret("").Reveal(), "");
}

}  // namespace
}  // namespace tensorcast::objects
