// The messages between the receiver and the source of a pull; FORMAT.md is their grammar. Pure functions:
// decoding is total, allocates no more than the message is long, and never trusts a length.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/serving.h"

namespace tensorcast::transport::wire {

// The version of the protocol. Both ends speak the same.
inline constexpr uint8_t kVersion = 2;

// Active message ids.
inline constexpr unsigned kControlId = 1;
inline constexpr unsigned kDataId = 2;

inline constexpr size_t kMaxTraceparentBytes = 128;
inline constexpr size_t kMaxErrorTextBytes = 256;

// The request id of an error that concerns the whole pull. Requests count from 1.
inline constexpr uint64_t kWholePull = 0;

struct Hello {
  uint8_t version = kVersion;
  // The longest DATA payload that the receiver takes; 0: whatever the source prefers.
  uint32_t max_piece_bytes = 0;
  PullId pull_id{};
  std::string traceparent;  // may be empty
  friend bool operator==(const Hello&, const Hello&) = default;
};

struct Welcome {
  uint8_t version = kVersion;
  uint32_t max_requests = 0;       // that may be outstanding at a time
  uint64_t max_request_bytes = 0;  // of one
  uint64_t image_bytes = 0;
  friend bool operator==(const Welcome&, const Welcome&) = default;
};

struct Error {
  uint64_t request_id = kWholePull;
  absl::Status status;  // never OK
  friend bool operator==(const Error&, const Error&) = default;
};

struct Request {
  uint64_t id = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  friend bool operator==(const Request&, const Request&) = default;
};

struct Bye {
  friend bool operator==(const Bye&, const Bye&) = default;
};

using Control = std::variant<Hello, Welcome, Error, Request, Bye>;

// Longer texts than the limits above are cut.
std::string EncodeControl(const Control& message);
// INVALID_ARGUMENT for everything that EncodeControl does not write.
absl::StatusOr<Control> DecodeControl(std::string_view bytes);

// In front of a piece of the image.
struct DataHeader {
  uint64_t request_id = 0;
  uint64_t offset = 0;  // of the piece in the image
  friend bool operator==(const DataHeader&, const DataHeader&) = default;
};
std::string EncodeDataHeader(const DataHeader& header);
absl::StatusOr<DataHeader> DecodeDataHeader(std::string_view bytes);

// FAILED_PRECONDITION, with both versions, for a HELLO of another one.
absl::Status CheckVersion(const Hello& hello);

}  // namespace tensorcast::transport::wire
