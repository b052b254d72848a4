// A source with its image in device memory: a replica on a GPU of this node, or a peer's GPU replica opened
// through its IPC handle. Fetch copies to the host and digests there: bytes that come from a GPU are verified
// on their way through the host.
#pragma once

#include <memory>

#include "core/device/device_runtime.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

// `image` is one contiguous allocation of image_bytes; `keep_alive` (a lease, an opened handle) is held as
// long as the source. With an availability only chunks that it has are read. `in_place`: it is the memory of
// the replica that is being made (ChunkSource::in_place).
absl::StatusOr<std::unique_ptr<ChunkSource>> MakeDeviceSource(
    SourceInfo info, DeviceRuntime* devices, DevicePtr image, std::shared_ptr<void> keep_alive,
    int max_concurrency, std::shared_ptr<const Availability> availability = nullptr, bool in_place = false);

}  // namespace tensorcast
