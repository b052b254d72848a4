// A mounted folder with one file, for tests of file systems that hang. This process serves the folder's file
// system (FUSE) and can stop answering reads or closes, as a network file system does when its server is
// gone. Needs root and /dev/fuse. Thread-safe.
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

  // Mounts the file system at an empty folder. Its only file, "model.safetensors", has these bytes.
  // UNAVAILABLE if this process may not mount.
  static absl::StatusOr<std::unique_ptr<HangingFolder>> Mount(const std::string& path, std::string content);
  // Ends all operations that hang, with an error, and unmounts.
  ~HangingFolder();
  HangingFolder(const HangingFolder&) = delete;
  HangingFolder& operator=(const HangingFolder&) = delete;

  std::string file() const { return path_ + "/model.safetensors"; }

  // From now on, reads at this offset or behind it get no answer.
  void HangReadsFrom(uint64_t offset) { hang_reads_from_ = offset; }
  // From now on, close(2) gets no answer.
  void HangCloses() { hang_closes_ = true; }

  // The number of operations that got no answer so far.
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
