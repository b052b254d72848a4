// Simulated GPUs of a host: memory that all processes of the host can open, within the limits of each GPU.
// The stand-in for the CUDA runtime uses it.
//
// A host is a file that its processes map: it lists the GPUs, and how much each process has allocated. The
// memory itself is a memfd of the allocating process, which others open through /proc while that process
// lives, so only the file outlives the processes. Allocations of an ended process are free again, as on
// hardware.
//
// Thread-safe. An incorrect call that hardware might accept ends the process with a message on stderr
// (Violation): programs need not handle an error for it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/posix/unique_fd.h"
#include "tests/stand_ins/violation.h"

namespace tensorcast::stand_ins {

// The environment variable with the path of the file; without it a process has no GPUs.
inline constexpr char kGpusVariable[] = "TENSORCAST_STAND_IN_GPUS";

// Makes the file of a host with `gpus` GPUs of `bytes_each`.
inline constexpr int kMaxGpus = 64;
absl::Status MakeHostGpus(const std::string& path, int gpus, uint64_t bytes_each);

// Makes such a host for this process and those that it starts, in a temporary file that the destructor
// removes.
class StandInHost {
 public:
  static absl::StatusOr<std::unique_ptr<StandInHost>> Make(int gpus, uint64_t bytes_each);
  // Whether this process was started on such a host, or has made one.
  static bool IsThere();
  StandInHost(const StandInHost&) = delete;
  StandInHost& operator=(const StandInHost&) = delete;
  ~StandInHost();

 private:
  explicit StandInHost(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

using GpuUuid = std::array<char, 16>;

// What a process needs to open another's memory: fits into a cudaIpcMemHandle_t.
struct GpuMemoryHandle {
  GpuUuid gpu;
  uint32_t entry = 0;
  uint64_t id = 0;  // unique on the host, for ever
};

// GPU memory in a process: an address range without access rights, which the program uses as its address, and
// a mapping of the same size, through which the stand-in accesses the bytes.
class GpuMemory {
 public:
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  ~GpuMemory();

  int gpu() const { return gpu_; }
  uint64_t address() const { return reinterpret_cast<uint64_t>(range_); }
  uint64_t bytes() const { return bytes_; }
  std::byte* host_view() const { return view_; }
  bool imported() const { return imported_; }

 private:
  friend class HostGpus;
  GpuMemory() = default;
  absl::Status Map();

  int gpu_ = -1;
  uint64_t bytes_ = 0;
  bool imported_ = false;
  uint32_t entry_ = 0;
  uint64_t id_ = 0;
  UniqueFd fd_;
  void* range_ = nullptr;
  std::byte* view_ = nullptr;
};

class HostGpus {
 public:
  static absl::StatusOr<std::unique_ptr<HostGpus>> Open(const std::string& path);
  HostGpus(const HostGpus&) = delete;
  HostGpus& operator=(const HostGpus&) = delete;
  ~HostGpus();

  int count() const;
  GpuUuid uuid(int gpu) const;
  uint64_t bytes() const;  // of each GPU
  // Bytes that no living process has allocated.
  uint64_t free_bytes(int gpu);

  // RESOURCE_EXHAUSTED: the GPU is full. New memory has random content, as on hardware.
  absl::StatusOr<std::shared_ptr<GpuMemory>> Allocate(int gpu, uint64_t bytes);
  // Violation: another process has it open.
  void Free(const GpuMemory& memory);
  GpuMemoryHandle Export(const GpuMemory& memory) const;
  // NOT_FOUND: it was freed, or its process has ended. INVALID_ARGUMENT: the handle never was valid.
  absl::StatusOr<std::shared_ptr<GpuMemory>> Import(const GpuMemoryHandle& handle);

 private:
  friend absl::Status MakeHostGpus(const std::string& path, int gpus, uint64_t bytes_each);
  struct Shared;
  class Lock;  // excludes other processes and threads

  HostGpus(UniqueFd fd, Shared* shared) : fd_(std::move(fd)), shared_(shared) {}
  uint64_t UsedLocked(int gpu);

  const UniqueFd fd_;
  Shared* const shared_;
  mutable absl::Mutex mutex_;
};

}  // namespace tensorcast::stand_ins
