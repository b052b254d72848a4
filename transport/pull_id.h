// The secret that names one pull: 128 random bits that a source hands to one receiver.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tensorcast::transport {

using PullId = std::array<uint8_t, 16>;

// From the system's random source.
PullId NewPullId();

inline std::string_view AsBytes(const PullId& id) {
  return {reinterpret_cast<const char*>(id.data()), id.size()};
}

// REQUIRES: bytes.size() == 16.
PullId PullIdFromBytes(std::string_view bytes);

}  // namespace tensorcast::transport
