#include "security/name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tensorcast::security::name_test {
namespace {

using ::testing::HasSubstr;

TEST(Name, ParseName_ReadsUriOfEachRole) {
  const struct {
    const char* uri;
    Role role;
    const char* name;
  } known[] = {
      {"spiffe://models.example/tensorcast/global-store", Role::kGlobalStore, ""},
      {"spiffe://models.example/tensorcast/global-store/a", Role::kGlobalStore, "a"},
      {"spiffe://models.example/tensorcast/node/rack-7_B.example", Role::kNode, "rack-7_B.example"},
      {"spiffe://models.example/tensorcast/operator", Role::kOperator, ""},
      {"spiffe://models.example/tensorcast/operator/ada", Role::kOperator, "ada"},
      {"spiffe://models.example/tensorcast/client/trainer", Role::kClient, "trainer"},
  };
  for (const auto& one : known) {
    const auto name = ParseName(one.uri);
    ASSERT_TRUE(name.ok()) << name.status();
    EXPECT_EQ(*name, (Name{"models.example", one.role, one.name}));
    EXPECT_EQ(name->ToString(), one.uri);
  }
}

TEST(Name, ParseName_RefusesOtherSpellings) {
  for (const std::string uri : {"",
                                "spiffe://",
                                "spiffe://models.example",
                                "spiffe://models.example/",
                                "models.example/tensorcast/client",
                                "https://models.example/tensorcast/client",
                                "SPIFFE://models.example/tensorcast/client",
                                "spiffe://Models.example/tensorcast/client",
                                "spiffe:///tensorcast/client",
                                "spiffe://models.example:7000/tensorcast/client",
                                "spiffe://user@models.example/tensorcast/client",
                                "spiffe://models.example/other/client",
                                "spiffe://models.example/tensorcast",
                                "spiffe://models.example/tensorcast/",
                                "spiffe://models.example/tensorcast/root",
                                "spiffe://models.example/tensorcast/Client",
                                "spiffe://models.example/tensorcast/node",
                                "spiffe://models.example/tensorcast/node/",
                                "spiffe://models.example/tensorcast/node/a/b",
                                "spiffe://models.example/tensorcast/node/..",
                                "spiffe://models.example/tensorcast/node/.",
                                "spiffe://models.example/tensorcast//node/a",
                                "spiffe://models.example/tensorcast/node/a/",
                                "spiffe://models.example/tensorcast/node/a%2Fb",
                                "spiffe://models.example/tensorcast/node/a?b",
                                "spiffe://models.example/tensorcast/node/a#b",
                                "spiffe://models.example/tensorcast/node/\xc3\xa4",
                                "spiffe://models.example/tensorcast/client/a b"}) {
    EXPECT_EQ(ParseName(uri).status().code(), absl::StatusCode::kInvalidArgument) << uri;
  }
}

TEST(Name, NameWithZeroByte_IsRefused) {
  const std::string uri("spiffe://models.example/tensorcast/operator\0", 44);
  EXPECT_FALSE(ParseName(uri).ok());
}

TEST(Name, NameAndTrustDomain_HaveMaxLength) {
  const std::string head = "spiffe://models.example/tensorcast/node/";
  EXPECT_TRUE(ParseName(head + std::string(kMaxUriBytes - head.size(), 'a')).ok());
  EXPECT_FALSE(ParseName(head + std::string(kMaxUriBytes - head.size() + 1, 'a')).ok());
  EXPECT_TRUE(CheckTrustDomain(std::string(kMaxDomainBytes, 'a')).ok());
  EXPECT_FALSE(CheckTrustDomain(std::string(kMaxDomainBytes + 1, 'a')).ok());
}

TEST(Name, ParseNameError_SaysWhatANameIs) {
  const std::string message(ParseName("spiffe://models.example/tensorcast/node").status().message());
  EXPECT_THAT(message, HasSubstr("a node needs a name"));
  EXPECT_THAT(message, HasSubstr("write global-store, node/NAME"));
}

TEST(Name, ParseNameIn_CompletesPathWithTrustDomain) {
  EXPECT_EQ(ParseNameIn("models.example", "node/a")->ToString(), "spiffe://models.example/tensorcast/node/a");
  EXPECT_FALSE(ParseNameIn("models example", "node/a").ok());
}

}  // namespace
}  // namespace tensorcast::security::name_test
