// A mounted folder with one file. Its file system (FUSE, served by this process) stops answering chosen
// operations, as a network file system does when its server dies. Needs root and /dev/fuse. Thread-safe.
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

  // From now on, reads at or after this offset are not answered.
  void HangReadsFrom(uint64_t offset) { hang_reads_from_ = offset; }
  // From now on, no close(2) is answered.
  void HangCloses() { hang_closes_ = true; }

  // Number of operations that wait for an answer.
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
