// A mounted folder of one file. Its file system (FUSE, served by this process) stops to answer chosen
// operations: what a network file system does when its server goes. Needs root and /dev/fuse. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"

namespace tensorcast::testing {

class HangingFolder {
 public:
  static constexpr uint64_t kNever = ~uint64_t{0};

  // Mounts it at an empty folder; its file "model.safetensors" has these bytes. UNAVAILABLE where this
  // process may not mount.
  static absl::StatusOr<std::unique_ptr<HangingFolder>> Mount(const std::string& path, std::string content);
  // Fails whatever hangs, and unmounts.
  ~HangingFolder();
  HangingFolder(const HangingFolder&) = delete;
  HangingFolder& operator=(const HangingFolder&) = delete;

  std::string file() const { return path_ + "/model.safetensors"; }

  // Reads at this offset or behind it are not answered, from now on.
  void HangReadsFrom(uint64_t offset) { hang_reads_from_ = offset; }
  // Nor is any close(2).
  void HangCloses() { hang_closes_ = true; }

  // How many operations have no answer.
  int hanging_reads() const { return hanging_reads_; }
  int hanging_closes() const { return hanging_closes_; }

 private:
  HangingFolder(std::string path, std::string content, UniqueFd device);
  void Serve();
  void Answer(const char* request);
  void Reply(uint64_t unique, int error, const void* body, size_t bytes);

  const std::string path_;
  const std::string content_;
  const UniqueFd device_;
  std::atomic<uint64_t> hang_reads_from_ = kNever;
  std::atomic<bool> hang_closes_ = false;
  std::atomic<int> hanging_reads_ = 0;
  std::atomic<int> hanging_closes_ = 0;
  std::thread thread_;
};

}  // namespace tensorcast::testing
