// What the stand-in for another of the vendor's libraries asks of the one for the CUDA runtime: to have work
// of its own done on a stream, as those libraries launch kernels. Such a stand-in is a shared library, as
// what it stands in for is, and finds the function among the program's.
//
// Thread-safe.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace tensorcast::stand_ins {

// Copies `bytes` between device memory, at an offset of what the work was enqueued with, and the host: into
// device memory for work that writes, else out of it. By an engine of the GPU, with its speed and its faults.
using PieceCopier = std::function<cudaError_t(uint64_t offset, std::byte* host, uint64_t bytes)>;
// Runs once, on the stream's thread, when all before it is done. Its error is the stream's.
using StreamWork = std::function<cudaError_t(const PieceCopier& copy)>;

}  // namespace tensorcast::stand_ins

// Violations: memory that is not of the stream's GPU, or the thread's current device is another.
extern "C" cudaError_t tensorcast_stand_in_enqueue(void* memory, size_t bytes, bool write,
                                                   cudaStream_t stream,
                                                   tensorcast::stand_ins::StreamWork work);
