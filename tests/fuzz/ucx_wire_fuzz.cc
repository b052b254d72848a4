// The messages between the ends of a UCX pull: control messages and the headers of data.
#include "absl/log/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "transport/ucx/wire.h"

namespace tensorcast::fuzz {

using namespace transport::wire;  // NOLINT(google-build-using-namespace): a dozen names of one codec

void TestOneInput(std::string_view input) {
  if (const absl::StatusOr<Control> message = DecodeControl(input); message.ok()) {
    // The text of an error is escaped where it is decoded, and may be longer than what came.
    CHECK(std::holds_alternative<Error>(*message) ||
          DecodeControl(EncodeControl(*message)).value() == *message);
    if (const Hello* hello = std::get_if<Hello>(&*message)) {
      CHECK_LE(hello->traceparent.size(), kMaxTraceparentBytes);
      CHECK_EQ(CheckVersion(*hello).ok(), hello->version == kVersion);
    } else if (const Error* error = std::get_if<Error>(&*message)) {
      CHECK(!error->status.ok());
    }
  }
  if (const absl::StatusOr<DataHeader> header = DecodeDataHeader(input); header.ok()) {
    CHECK(EncodeDataHeader(*header) == input);
  }
}

std::vector<std::string> Seeds() {
  return {EncodeControl(Hello{.traceparent = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"}),
          EncodeControl(Hello{.version = 9, .max_piece_bytes = 1 << 20}),
          EncodeControl(Welcome{.max_requests = 8, .max_request_bytes = 1 << 24, .image_bytes = 1 << 30}),
          EncodeControl(Error{.request_id = 7, .status = absl::NotFoundError("gone")}),
          EncodeControl(Request{.id = 1, .offset = 4096, .bytes = 1 << 20}),
          EncodeControl(Bye{}),
          EncodeDataHeader({.request_id = 1, .offset = 4096})};
}

}  // namespace tensorcast::fuzz
