#include "core/ingest/device_verification.h"

#include <algorithm>

namespace tensorcast {
namespace {

constexpr uint32_t kSampleEvery = 16;

}  // namespace

std::optional<DeviceVerification> ParseDeviceVerification(std::string_view name) {
  if (name == "full") return DeviceVerification::kFull;
  if (name == "sampled") return DeviceVerification::kSampled;
  if (name == "off") return DeviceVerification::kOff;
  return std::nullopt;
}

bool IsCompared(DeviceVerification policy, uint64_t seed, uint32_t chunk, uint32_t chunks) {
  switch (policy) {
    case DeviceVerification::kFull:
      return true;
    case DeviceVerification::kSampled:
      // With less than 16 chunks one of them is compared all the same.
      return chunk % kSampleEvery == seed % std::min(kSampleEvery, chunks);
    case DeviceVerification::kOff:
      return false;
  }
  return true;
}

}  // namespace tensorcast
