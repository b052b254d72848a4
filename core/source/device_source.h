// A source with its image in device memory: a replica on a GPU of this node, or a peer's GPU replica that was
// opened through its IPC handle. Fetch copies the bytes to the host and digests them there.
#pragma once

#include <memory>

#include "core/device/device_runtime.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

// `image` is one contiguous allocation with the whole image. The source holds `keep_alive` (a lease, an
// opened handle) during its lifetime. If `availability` is not null, the source reads only the chunks of
// `availability`. `in_place` is true if `image` is memory of the replica that is being made
// (ChunkSource::in_place). `devices` must outlive the source. Fails if the device cannot make a stream.
absl::StatusOr<std::unique_ptr<ChunkSource>> MakeDeviceSource(
    SourceInfo info, DeviceRuntime* devices, DevicePtr image, std::shared_ptr<void> keep_alive,
    int max_concurrency, std::shared_ptr<const Availability> availability = nullptr, bool in_place = false);

}  // namespace tensorcast
