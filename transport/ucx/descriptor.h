// The descriptor of a serving: what a receiver must know to pull. FORMAT.md is its grammar. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/serving.h"

namespace tensorcast::transport {

inline constexpr size_t kMaxDescriptorBytes = size_t{64} << 10;

enum class UcxLane : uint8_t { kMessages = 0, kRma = 1 };

struct UcxDescriptor {
  // Image bytes in the source's memory, readable with rkeys[rkey].
  struct Segment {
    uint8_t rkey = 0;
    uint64_t address = 0;
    uint64_t bytes = 0;
    friend bool operator==(const Segment&, const Segment&) = default;
  };

  UcxLane lane = UcxLane::kMessages;
  PullId pull_id{};
  std::string address;  // "host:port"
  uint64_t image_bytes = 0;
  // One-sided lane only:
  std::vector<std::string> rkeys;
  std::vector<Segment> segments;
  friend bool operator==(const UcxDescriptor&, const UcxDescriptor&) = default;
};

// FAILED_PRECONDITION when it would be longer than kMaxDescriptorBytes: the image lies in too many segments.
absl::StatusOr<std::string> EncodeDescriptor(const UcxDescriptor& descriptor);
// INVALID_ARGUMENT for bytes that are none, FAILED_PRECONDITION for those of another version. The segments of
// a decoded descriptor make up its image.
absl::StatusOr<UcxDescriptor> DecodeDescriptor(std::string_view bytes);

}  // namespace tensorcast::transport
