// The image of a put: one memfd, tensors copied in at their offsets, padding zero, sealed. Private to this
// folder.
#pragma once

#include <span>

#include "absl/status/statusor.h"
#include "core/artifact/layout.h"
#include "core/handles/handles.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

struct SealedImage {
  ImageLayout layout;
  UniqueFd memfd;  // sealed WRITE | SHRINK | GROW; layout.image_bytes long
};

// INVALID_ARGUMENT as AssignOffsets and of addresses, naming the tensor; RESOURCE_EXHAUSTED when the host
// lacks the memory; FAILED_PRECONDITION for GPU memory without `devices`, which may be null. Copies with
// several threads where there is much to copy, and stops within some milliseconds when the context ends
// (CANCELLED, DEADLINE_EXCEEDED).
absl::StatusOr<SealedImage> BuildSealedImage(const RequestContext& context,
                                             std::span<const PutTensor> tensors, DeviceRuntime* devices);

}  // namespace tensorcast::client
