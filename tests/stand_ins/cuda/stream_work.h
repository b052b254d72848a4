// The interface by which stand-ins for other libraries of the vendor run work on a stream of the CUDA
// stand-in, as those libraries launch kernels. Such a stand-in is a shared library, as the real one is, and
// finds the function in the program.
//
// Thread-safe.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace tensorcast::stand_ins {

// Copies `bytes` between the host and device memory, at an offset in the memory of the work: into device
// memory for work that writes, otherwise out of it. Uses an engine of the GPU, with its speed and its faults.
using PieceCopier = std::function<cudaError_t(uint64_t offset, std::byte* host, uint64_t bytes)>;
// Runs once, on the stream's thread, when all earlier operations are done. Its error becomes the stream's.
using StreamWork = std::function<cudaError_t(const PieceCopier& copy)>;

}  // namespace tensorcast::stand_ins

// Violations: the memory is not of the stream's GPU, or another device is current on the thread.
extern "C" cudaError_t tensorcast_stand_in_enqueue(void* memory, size_t bytes, bool write,
                                                   cudaStream_t stream,
                                                   tensorcast::stand_ins::StreamWork work);
