#include "base/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tensorcast::address_test {
namespace {

TEST(Address, HostPort_RoundTrips) {
  for (const char* text : {"10.0.0.1:7000", "node-a.example:1", "[fd00::1]:65535", "localhost:0"}) {
    const auto parsed = ParseHostPort(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(FormatHostPort(*parsed), text);
  }
  EXPECT_EQ(*ParseHostPort("10.0.0.1:70"), (HostPort{"10.0.0.1", 70}));
  EXPECT_EQ(*ParseHostPort("[::1]:0"), (HostPort{"::1", 0}));
}

TEST(Address, InvalidHostPort_IsRefusedByName) {
  for (const std::string& text : std::vector<std::string>{
           "", ":", "foo", ":7000", "host:x", "[]:5", "[[]]:5", "127.0.0.1:", "127.0.0.1:99999",
           "127.0.0.1:+1", "127.0.0.1: 1", "127.0.0.1:0x1", "::1:7000", "http://127.0.0.1:7000", "a b:1",
           "[::1:7000", std::string(kMaxHostBytes + 1, 'x').append(":1")}) {
    const absl::Status refused = ParseHostPort(text).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(refused.message(), ::testing::HasSubstr("\"" + text + "\""));
  }
}

TEST(Address, EveryFormOfWildcard_IsRecognized) {
  for (const char* text :
       {"0.0.0.0:1", "0:1", "[::]:1", "[0:0:0:0:0:0:0:0]:1", "[::ffff:0.0.0.0]:1", "*:1"}) {
    EXPECT_TRUE(IsWildcard(*ParseHostPort(text))) << text;
    EXPECT_TRUE(CheckListenAddress(text).ok());
    EXPECT_FALSE(CheckServerAddress(text).ok());
  }
  for (const char* text : {"10.0.0.0:1", "[::1]:1", "localhost:1"}) {
    EXPECT_FALSE(IsWildcard(*ParseHostPort(text))) << text;
  }
}

TEST(Address, UnixSocketPath_MustNotBeEmptyOrTooLong) {
  EXPECT_TRUE(CheckListenAddress("unix:/run/x.sock").ok());
  EXPECT_TRUE(CheckServerAddress("unix:/run/x.sock").ok());
  EXPECT_FALSE(CheckListenAddress("unix:").ok());
  EXPECT_TRUE(CheckSocketPath(std::string(107, 'x')).ok());
  EXPECT_FALSE(CheckSocketPath(std::string(108, 'x')).ok());
  EXPECT_FALSE(CheckServerAddress("127.0.0.1:0").ok());
}

TEST(Address, LoopbackAddress_IsOnLoopbackInterface) {
  EXPECT_EQ(InterfaceOf(*ResolveAddress({"127.0.0.1", 1})), "lo");
  EXPECT_EQ(InterfaceOf(*ResolveAddress({"0.0.0.0", 1})), "");
}

TEST(Address, IsLoopback_RejectsNamesThatOnlyLookSo) {
  for (const char* host : {"127.0.0.1", "127.9.8.7", "::1", "0:0:0:0:0:0:0:1", "localhost"}) {
    EXPECT_TRUE(IsLoopback({host, 1})) << host;
  }
  for (const char* host :
       {"127.0.0.1.example", "127.example", "10.0.0.1", "0.0.0.0", "::", "localhost.example", ""}) {
    EXPECT_FALSE(IsLoopback({host, 1})) << host;
  }
}

}  // namespace
}  // namespace tensorcast::address_test
