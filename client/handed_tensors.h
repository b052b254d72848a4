// Which tensors of a put are handed over, since they lie in memory that nothing can change any more. Private
// to this folder.
#pragma once

#include <span>
#include <vector>

#include "core/artifact/layout.h"
#include "core/handles/handles.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

// Those in sealed memfds that this process has mapped and still has open, and those in replicas of host
// memory that it holds, as far as it has not written to them. A small tensor is streamed: that costs less.
// REQUIRES: `layout` is that of the tensors, in their order.
std::vector<HandedMemory> FindHandedTensors(std::span<const PutTensor> tensors, const ImageLayout& layout);

}  // namespace tensorcast::client
