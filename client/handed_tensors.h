// Finds the tensors of a put that the daemon can copy directly, because the daemon can reach their memory and
// no process can change that memory. Such tensors are handed over instead of streamed. Private to this
// folder.
#pragma once

#include <span>
#include <vector>

#include "core/artifact/layout.h"
#include "core/handles/handles.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

// Returns the tensors of at least 64 KiB in either kind of memory: a sealed memfd that this process has
// mapped and still has open, or a host replica that this process holds, at a place that it did not write to.
// For a smaller tensor, streaming costs less. REQUIRES: layout.tensors describes `tensors`, in the same
// order.
std::vector<HandedMemory> FindHandedTensors(std::span<const PutTensor> tensors, const ImageLayout& layout);

}  // namespace tensorcast::client
