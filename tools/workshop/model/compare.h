// Compares an attached replica with a safetensors model on disk, byte for byte, by a way of reading of its
// own: the judge of the demo, the chaos tool and the end-to-end tests.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/device/device_runtime.h"
#include "tensorcast/client.h"

namespace tensorcast {

// OK when the replica, with these tensors, has the model's tensors and no others: by name, dtype, shape
// and every byte. Returns how many bytes were compared; DATA_LOSS names the first tensor, and byte, that
// differs. `devices`, with which a GPU replica was opened, may be null for one in host memory. Ends early as
// the context says.
absl::StatusOr<uint64_t> CompareReplica(std::span<const client::TensorView> replica,
                                        const std::string& model_path, DeviceRuntime* devices,
                                        const RequestContext& context = {});

// The same of a replica in host memory of which only the tensors of these names were asked for.
absl::StatusOr<uint64_t> ComparePart(std::span<const client::TensorView> part,
                                     std::span<const std::string> names, const std::string& model_path,
                                     const RequestContext& context = {});

}  // namespace tensorcast
