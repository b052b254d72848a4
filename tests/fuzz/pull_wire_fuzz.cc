// The frames between the ends of a pull, in any pieces, the descriptor that leads to one, and the "host:port"
// in it.
#include "absl/log/check.h"
#include "base/address.h"
#include "tests/fuzz/fuzz_target.h"
#include "transport/pull/wire.h"

namespace tensorcast::fuzz {

using namespace transport::pull;  // NOLINT(google-build-using-namespace): a dozen names of one codec

void TestOneInput(std::string_view input) {
  if (const absl::StatusOr<HostPort> address = ParseHostPort(input); address.ok()) {
    CHECK(ParseHostPort(FormatHostPort(*address)).value() == *address) << input;
  }
  if (const absl::StatusOr<Descriptor> descriptor = DecodeDescriptor("ucx-rma", input); descriptor.ok()) {
    CHECK(EncodeDescriptor(*descriptor) == input);
    uint64_t bytes = 0;
    for (const Descriptor::Segment& segment : descriptor->segments) {
      CHECK_LT(segment.rkey, descriptor->rkeys.size());
      CHECK_LE(segment.bytes, descriptor->image_bytes - bytes);
      bytes += segment.bytes;
    }
    CHECK(descriptor->segments.empty() || bytes == descriptor->image_bytes);
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
          EncodeDescriptor({.lane = "ucx-rma",
                            .image_bytes = 0x1234,
                            .addresses = {"10.0.0.1:7000", "[fe80::1]:65535"},
                            .rkeys = {"abc", ""},
                            .segments = {{0, 0x10000, 0x1000}, {1, 0x20000, 0x234}}}),
          EncodeDescriptor(
              {.lane = "ucx-rma", .addresses = {""}, .source = "spiffe://a.example/tensorcast/node/b"}),
          "[::1]:80",
          "host:0",
          "host:65536"};
}

}  // namespace tensorcast::fuzz
