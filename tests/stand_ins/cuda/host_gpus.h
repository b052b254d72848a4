// The GPUs of a host that has none: memory that all processes of the host can open, within the limits of each
// GPU. What the stand-in for the CUDA runtime is built on.
//
// A host is a file that its processes map: what GPUs there are, and which process has allocated how much. The
// memory itself is a memfd of the process that allocated it, which others open through /proc while that
// process lives; so nothing outlives the processes but the file. What a process that ended had allocated is
// free again, as on hardware.
//
// Thread-safe. Methods that find the caller wrong where hardware might let it pass say so on stderr and abort
// (Violation): no error that a program is meant to handle is returned.
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

// The environment variable that names the file; without it a process sees no GPU.
inline constexpr char kGpusVariable[] = "TENSORCAST_STAND_IN_GPUS";

// Makes the file of a host with GPUs of this size each.
inline constexpr int kMaxGpus = 64;
absl::Status MakeHostGpus(const std::string& path, int gpus, uint64_t bytes_each);

// Such a host for this process and those that it starts, in a file of the temporary folder that goes with
// this.
class StandInHost {
 public:
  static absl::StatusOr<std::unique_ptr<StandInHost>> Make(int gpus, uint64_t bytes_each);
  // Whether this process was started on one, or has made one.
  static bool IsThere();
  StandInHost(const StandInHost&) = delete;
  StandInHost& operator=(const StandInHost&) = delete;
  ~StandInHost();

 private:
  explicit StandInHost(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

using GpuUuid = std::array<char, 16>;

// What one process needs to open another's memory: fits into a cudaIpcMemHandle_t.
struct GpuMemoryHandle {
  GpuUuid gpu;
  uint32_t entry = 0;
  uint64_t id = 0;  // unlike any other's of the host, ever
};

// Memory of a GPU as a process sees it: an address range without access rights, which stands for it in the
// program, and a mapping of the same size through which the stand-in itself does.
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
  uint64_t bytes() const;  // of each
  // Of memory that living processes have.
  uint64_t free_bytes(int gpu);

  // RESOURCE_EXHAUSTED: the GPU is full. New memory is full of junk, as hardware's is.
  absl::StatusOr<std::shared_ptr<GpuMemory>> Allocate(int gpu, uint64_t bytes);
  // A violation: another process has it open.
  void Free(const GpuMemory& memory);
  GpuMemoryHandle Export(const GpuMemory& memory) const;
  // NOT_FOUND: it was freed, or its process has ended. INVALID_ARGUMENT: never was one.
  absl::StatusOr<std::shared_ptr<GpuMemory>> Import(const GpuMemoryHandle& handle);

 private:
  friend absl::Status MakeHostGpus(const std::string& path, int gpus, uint64_t bytes_each);
  struct Shared;
  class Lock;  // between processes and threads

  HostGpus(UniqueFd fd, Shared* shared) : fd_(std::move(fd)), shared_(shared) {}
  uint64_t UsedLocked(int gpu);

  const UniqueFd fd_;
  Shared* const shared_;
  mutable absl::Mutex mutex_;
};

}  // namespace tensorcast::stand_ins
