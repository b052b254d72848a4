// How much of what comes from GPU to GPU, without the host, is compared with the manifest. All else always
// is. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tensorcast {

enum class DeviceVerification : uint8_t {
  kFull,
  kSampled,  // of each 16 chunks one, of fewer too: which, differs from transfer to transfer
  kOff,
};

// "full", "sampled" or "off".
std::optional<DeviceVerification> ParseDeviceVerification(std::string_view name);
// Whether this chunk of so many is compared, in the transfer of that seed.
bool IsCompared(DeviceVerification policy, uint64_t seed, uint32_t chunk, uint32_t chunks);

}  // namespace tensorcast
