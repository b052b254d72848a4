#include "transport/ucx/wire.h"

#include <random>

#include "absl/strings/escaping.h"
#include "transport/ucx/descriptor.h"

#include <gmock/gmock.h>

namespace tensorcast::transport::wire {
namespace {

PullId TestId() {
  PullId id;
  for (uint8_t i = 0; i < id.size(); ++i) id[i] = 0xa0 + i;
  return id;
}

std::vector<Control> AllControls() {
  return {Hello{.max_piece_bytes = 0x40000, .pull_id = TestId(), .traceparent = "00-ab"},
          Hello{.pull_id = TestId()},
          Welcome{.version = 1, .max_requests = 64, .max_request_bytes = 1 << 20, .image_bytes = 123456789},
          Error{.request_id = 7, .status = absl::NotFoundError("gone")},
          Error{.status = absl::UnavailableError("")},
          Request{.id = 9, .offset = 1 << 30, .bytes = 4096},
          Bye{}};
}

TEST(Wire, UcxMessages_SurviveRoundTrip) {
  for (const Control& message : AllControls()) {
    const absl::StatusOr<Control> read = DecodeControl(EncodeControl(message));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(*read == message);
  }
  const DataHeader header{.request_id = 3, .offset = 5};
  EXPECT_EQ(*DecodeDataHeader(EncodeDataHeader(header)), header);
}

// The worked examples of FORMAT.md.
TEST(Wire, UcxMessages_EncodeToGoldenBytes) {
  const auto hex = [](const Control& message) { return absl::BytesToHexString(EncodeControl(message)); };
  EXPECT_EQ(hex(Hello{.max_piece_bytes = 0x40000, .pull_id = TestId(), .traceparent = "00-ab"}),
            "01"
            "54435032"
            "02"
            "00000400"
            "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf"
            "0500"
            "30302d6162");
  EXPECT_EQ(hex(Welcome{.max_requests = 64, .max_request_bytes = 0x100000, .image_bytes = 0x0201}),
            "02"
            "02"
            "40000000"
            "0000100000000000"
            "0102000000000000");
  EXPECT_EQ(hex(Error{.request_id = 7, .status = absl::NotFoundError("gone")}),
            "03"
            "0700000000000000"
            "05"
            "0400"
            "676f6e65");
  EXPECT_EQ(hex(Request{.id = 9, .offset = 0x1000000, .bytes = 0x100000}),
            "04"
            "0900000000000000"
            "0000000100000000"
            "0000100000000000");
  EXPECT_EQ(hex(Bye{}), "05");
  EXPECT_EQ(absl::BytesToHexString(EncodeDataHeader({.request_id = 9, .offset = 0x1000000})),
            "06"
            "0900000000000000"
            "0000000100000000");
}

TEST(Wire, TruncatedOrExtendedUcxMessage_IsRefused) {
  for (const Control& message : AllControls()) {
    const std::string bytes = EncodeControl(message);
    for (size_t length = 0; length < bytes.size(); ++length) {
      EXPECT_EQ(DecodeControl(bytes.substr(0, length)).status().code(), absl::StatusCode::kInvalidArgument);
    }
    EXPECT_EQ(DecodeControl(bytes + "x").status().code(), absl::StatusCode::kInvalidArgument);
  }
  const std::string data = EncodeDataHeader({.request_id = 1, .offset = 2});
  EXPECT_FALSE(DecodeDataHeader(data.substr(1)).ok());
  EXPECT_FALSE(DecodeDataHeader(data + "x").ok());
}

TEST(Wire, UcxMessageWithInvalidField_IsRefused) {
  EXPECT_FALSE(DecodeControl(std::string("\x63", 1)).ok());
  EXPECT_FALSE(DecodeControl(EncodeControl(Request{.id = 0, .offset = 0, .bytes = 1})).ok());
  EXPECT_FALSE(DecodeControl(EncodeControl(Request{.id = 1, .offset = 0, .bytes = 0})).ok());
  EXPECT_FALSE(DecodeControl(EncodeControl(Welcome{})).ok());
  EXPECT_FALSE(DecodeControl(EncodeControl(Error{.request_id = 1, .status = absl::OkStatus()})).ok());
  EXPECT_FALSE(DecodeDataHeader(EncodeDataHeader({.request_id = 0, .offset = 2})).ok());
}

TEST(Wire, LongErrorText_IsTruncated) {
  const Error error{.request_id = 1, .status = absl::InternalError(std::string(1000, 'x'))};
  const absl::StatusOr<Control> read = DecodeControl(EncodeControl(error));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(std::get<Error>(*read).status.message().size(), kMaxErrorTextBytes);
}

TEST(Wire, RandomUcxBytes_AreReadOrRefused) {
  std::mt19937 random(42);
  for (int i = 0; i < 50000; ++i) {
    std::string bytes(random() % 64, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (!bytes.empty() && i % 2 == 0) bytes[0] = static_cast<char>(random() % 7);
    const absl::StatusOr<Control> read = DecodeControl(bytes);
    if (read.ok()) {
      EXPECT_EQ(EncodeControl(*read), bytes);
    }
    (void)DecodeDataHeader(bytes);
    (void)DecodeDescriptor(bytes);
    (void)DecodeDescriptor("TCUX\x01\x01" + bytes);
  }
}

TEST(Wire, HelloOfAnotherVersion_IsRefused) {
  EXPECT_TRUE(CheckVersion(Hello{}).ok());
  for (const uint8_t version : {kVersion - 1, kVersion + 1}) {
    EXPECT_EQ(CheckVersion(Hello{.version = version}).code(), absl::StatusCode::kFailedPrecondition);
  }
}

}  // namespace
}  // namespace tensorcast::transport::wire
