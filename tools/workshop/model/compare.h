// Compares an attached replica with a safetensors model on disk, byte for byte, with a separate reader: for
// the demo, the chaos tool and the end-to-end tests.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/device/device_runtime.h"
#include "tensorcast/client.h"

namespace tensorcast {

// OK when the replica's tensors are exactly the model's: by name, dtype, shape and every byte. Returns the
// number of compared bytes; DATA_LOSS names the first tensor, and byte, that differs. `devices`, with which a
// GPU replica was opened, may be null for one in host memory. Ends early with the context.
absl::StatusOr<uint64_t> CompareReplica(std::span<const client::TensorView> replica,
                                        const std::string& model_path, DeviceRuntime* devices,
                                        const RequestContext& context = {});

// The same for a replica in host memory of which only the tensors with these names were requested.
absl::StatusOr<uint64_t> ComparePart(std::span<const client::TensorView> part,
                                     std::span<const std::string> names, const std::string& model_path,
                                     const RequestContext& context = {});

}  // namespace tensorcast
