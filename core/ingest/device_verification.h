// Selects which chunks to compare with the manifest when chunks are copied from GPU to GPU without the host.
// Chunks that are not copied in this way are always compared. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tensorcast {

enum class DeviceVerification : uint8_t {
  kFull,
  kSampled,  // one chunk in 16, but at least one; the transfer's seed selects them
  kOff,
};

// "full", "sampled" or "off".
std::optional<DeviceVerification> ParseDeviceVerification(std::string_view name);
// Whether `chunk`, of an image of `chunks` chunks, is compared in the transfer with this seed.
bool IsCompared(DeviceVerification policy, uint64_t seed, uint32_t chunk, uint32_t chunks);

}  // namespace tensorcast
