// The frames between the ends of a pull over TCP, in any pieces, and the descriptor that leads to one.
#include "absl/log/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "transport/pull/wire.h"

namespace tensorcast::fuzz {

using namespace transport::tcp;  // NOLINT(google-build-using-namespace): a dozen names of one codec

void TestOneInput(std::string_view input) {
  if (const absl::StatusOr<Descriptor> descriptor = DecodeDescriptor(input); descriptor.ok()) {
    CHECK(EncodeDescriptor(*descriptor) == input);
  }
  // As a reader takes them: one after the other, and each the same however much of what follows is there.
  while (!input.empty()) {
    const auto decoded = DecodeFrame(input);
    if (!decoded.ok()) {
      CHECK(decoded.status().code() == absl::StatusCode::kInvalidArgument);
      return;
    }
    if (!decoded->has_value()) {
      CHECK_LT(input.size(), kMaxFrameHeadBytes);
      return;
    }
    const auto& [frame, bytes] = **decoded;
    CHECK(bytes > 0 && bytes <= input.size() && bytes <= kMaxFrameHeadBytes);
    // The text of an error is escaped where it is decoded, so it need not be what came.
    CHECK(std::holds_alternative<Error>(frame) || EncodeFrame(frame) == input.substr(0, bytes));
    CHECK(DecodeFrame(input.substr(0, bytes)).value()->frame == frame);
    CHECK(!DecodeFrame(input.substr(0, bytes - 1)).value().has_value());
    if (const auto* hello = std::get_if<Hello>(&frame)) {
      CHECK_LE(hello->traceparent.size(), kMaxTraceparentBytes);
      CHECK_EQ(CheckVersion(*hello).ok(), hello->version == kVersion);
    } else if (const auto* error = std::get_if<Error>(&frame)) {
      CHECK(!error->status.ok());
    } else if (const auto* data = std::get_if<Data>(&frame)) {
      CHECK(data->bytes > 0 && data->bytes <= kMaxPieceBytes);
    } else if (const auto* have = std::get_if<Have>(&frame)) {
      CHECK(!have->words.empty() && have->words.size() <= kMaxHaveWords && have->first % kHaveWordBits == 0);
    }
    input.remove_prefix(bytes);
  }
}

std::vector<std::string> Seeds() {
  const std::string request = EncodeFrame(Request{.id = 1, .offset = 4096, .bytes = 1 << 20});
  return {EncodeFrame(Hello{.traceparent = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"}),
          EncodeFrame(Hello{.version = 9}),
          EncodeFrame(Welcome{.max_requests = 8, .max_request_bytes = 1 << 24, .image_bytes = 1 << 30}),
          EncodeFrame(Welcome{
              .max_requests = 8, .max_request_bytes = 1 << 24, .image_bytes = 1, .chunk_bytes = 4096}),
          EncodeFrame(Welcome{.version = 1, .max_requests = 8, .max_request_bytes = 1 << 24}),
          EncodeFrame(Have{.first = 64, .words = {5, ~uint64_t{0}}}) + EncodeFrame(NotHere{.id = 3}),
          EncodeFrame(Follow{}) + EncodeFrame(Have{.words = std::vector<uint64_t>(kMaxHaveWords, 1)}),
          EncodeFrame(Error{.request_id = 7, .status = absl::NotFoundError("gone")}),
          request + request + EncodeFrame(Cancel{.id = 1}) + EncodeFrame(Bye{}),
          EncodeFrame(Data{.request_id = 1, .offset = 4096, .bytes = 1000}),
          EncodeDescriptor({.image_bytes = 0x1234, .addresses = {"10.0.0.1:7000", "[fe80::1]:65535"}}),
          EncodeDescriptor({.addresses = {""}, .source = "spiffe://a.example/tensorcast/node/b"})};
}

}  // namespace tensorcast::fuzz
