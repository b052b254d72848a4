// The stand-in for the CUDA runtime of a process: the work of the C functions (runtime_api.cc) after their
// checks. Each method does what the CUDA function of that name (with "cuda" before it) does, and returns its
// error. A call that a correct program never makes is a Violation.
//
// Source of the rules: CUDA Runtime API, "API synchronization behavior", "Memory management", "Stream
// management", "Event management" and "Interprocess communication".
//
// Thread-safe.
#pragma once

#include <cuda_runtime_api.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/device/testing/device_faults.h"
#include "tests/stand_ins/cuda/copy_engines.h"
#include "tests/stand_ins/cuda/happens_before.h"
#include "tests/stand_ins/cuda/host_gpus.h"
#include "tests/stand_ins/cuda/stream.h"
#include "tests/stand_ins/cuda/stream_work.h"

namespace tensorcast::stand_ins {

// The thread's current device, by its number in this process, not in the host.
int& CurrentGpu();

class Runtime {
 public:
  // Made by the first call, and never destroyed, as streams may outlive main. Null: this process has no GPUs.
  static Runtime* Get();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  int count() const { return static_cast<int>(visible_.size()); }
  // The first step of every call. It fails in a forked child, where CUDA does not work, and after a device
  // has failed.
  cudaError_t Check() const;

  cudaError_t Properties(cudaDeviceProp* properties, int gpu);
  cudaError_t MemoryInfo(size_t* free, size_t* total);
  cudaError_t Allocate(void** pointer, size_t bytes);
  cudaError_t Free(void* pointer);

  cudaError_t PointerAttributes(cudaPointerAttributes* attributes, const void* pointer);

  cudaError_t RegisterHost(void* base, size_t bytes, unsigned int flags);
  cudaError_t UnregisterHost(void* base);
  // The result is an address for kernels only, and never the host's own: some systems have two.
  cudaError_t HostGetDevicePointer(void** device, void* host, unsigned int flags);

  cudaError_t GetHandle(cudaIpcMemHandle_t* handle, void* pointer);
  cudaError_t OpenHandle(void** pointer, const cudaIpcMemHandle_t& handle, unsigned int flags);
  cudaError_t CloseHandle(void* pointer);

  cudaError_t CreateStream(cudaStream_t* stream);
  cudaError_t DestroyStream(cudaStream_t stream);
  cudaError_t SynchronizeStream(cudaStream_t stream);
  cudaError_t QueryStream(cudaStream_t stream);
  cudaError_t EnqueueCopy(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind,
                          cudaStream_t stream);
  cudaError_t EnqueueWork(void* memory, size_t bytes, bool write, cudaStream_t stream, StreamWork work);

  cudaError_t LaunchKernel(std::string_view kernel, void** parameters, int blocks, int threads,
                           cudaStream_t stream);

  bool has_peers() const { return faults_ == nullptr || !faults_->no_peers; }
  // Copies between two devices that are not peers go through the host, which the timeline shows.
  cudaError_t EnablePeerAccess(int peer);

  cudaError_t CreateEvent(cudaEvent_t* event);
  cudaError_t DestroyEvent(cudaEvent_t event);
  cudaError_t RecordEvent(cudaEvent_t event, cudaStream_t stream);
  cudaError_t StreamWaitsForEvent(cudaStream_t stream, cudaEvent_t event);
  cudaError_t SynchronizeEvent(cudaEvent_t event);
  cudaError_t QueryEvent(cudaEvent_t event);

 private:
  struct OpenedHandle {
    uint64_t address = 0;
    int opens = 0;
  };
  struct PinnedRange {
    uint64_t bytes = 0;
    bool mapped = false;  // kernels may read it
  };
  struct End {
    std::byte* at = nullptr;
    std::shared_ptr<GpuMemory> memory;  // null: host memory
  };

  Runtime(std::unique_ptr<HostGpus> host, std::vector<int> visible);

  static Runtime* Open();
  // Violation unless `gpu` is right: hardware often accepts such a call, or makes a context on the wrong
  // device.
  void CheckGpu(int gpu, std::string_view call) const;
  void* Add(std::shared_ptr<GpuMemory> memory) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null: no memory begins at `pointer`.
  std::shared_ptr<GpuMemory> Remove(void* pointer, bool imported);
  std::shared_ptr<CUstream_st> Find(cudaStream_t stream);
  // The stand-in's address for the program's `pointer`.
  End EndOf(const void* pointer, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether kernels may read all of this host memory.
  bool IsMapped(uint64_t address, uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether work on this GPU, by its number in the host, can access the memory.
  bool Reaches(int gpu, const GpuMemory& memory) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  cudaError_t Run(const Copy& copy);
  void DropImports(int gpu) ABSL_LOCKS_EXCLUDED(mutex_);

  const pid_t pid_;
  const std::unique_ptr<HostGpus> host_;
  const std::vector<int> visible_;  // host number by device number of this process
  std::shared_ptr<DeviceFaults> faults_;
  std::unique_ptr<CopyEngines> engines_;
  std::vector<std::atomic<bool>> poisoned_;
  absl::Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<GpuMemory>> memory_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, OpenedHandle> imported_ ABSL_GUARDED_BY(mutex_);  // by handle id
  std::map<uint64_t, PinnedRange> pinned_ ABSL_GUARDED_BY(mutex_);     // host memory, by address
  std::map<cudaStream_t, std::shared_ptr<CUstream_st>> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<cudaEvent_t, std::unique_ptr<CUevent_st>> events_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<int, int>> peers_ ABSL_GUARDED_BY(mutex_);  // by host numbers: (from, to)
  HappensBefore order_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_stream_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tensorcast::stand_ins
