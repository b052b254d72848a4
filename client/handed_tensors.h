// Finds the tensors of a put that the daemon can copy directly: the daemon can reach their memory, and no
// process can change that memory. The put hands these tensors over instead of streaming them. Private to this
// folder.
#pragma once

#include <span>
#include <vector>

#include "core/artifact/layout.h"
#include "core/handles/handles.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

// Returns the tensors of at least 64 KiB in one of two kinds of memory:
// - a sealed memfd that this process has mapped and still has open;
// - a host replica that this process holds, at a place that this process did not write to.
// REQUIRES: layout.tensors describes `tensors`, in the same order.
std::vector<HandedMemory> FindHandedTensors(std::span<const PutTensor> tensors, const ImageLayout& layout);

}  // namespace tensorcast::client
