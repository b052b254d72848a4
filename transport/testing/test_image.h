// Images, memory and waits for the transport tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/replica/availability.h"
#include "transport/registered_memory.h"
#include "transport/transport.h"

namespace tensorcast::transport {

// Page-aligned memory, zeroed.
class TestMemory {
 public:
  explicit TestMemory(uint64_t bytes);
  ~TestMemory();
  TestMemory(const TestMemory&) = delete;
  TestMemory& operator=(const TestMemory&) = delete;

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  HostSpan span(uint64_t offset, uint64_t bytes) const { return {data_ + offset, bytes}; }

 private:
  std::byte* data_;
  uint64_t bytes_;
};

// Writes or checks the bytes of the test image. Each byte is a function of its offset in the image, so that
// all processes agree on it.
void WritePattern(HostSpan memory, uint64_t image_offset);
bool HoldsPattern(ConstHostSpan memory, uint64_t image_offset);
bool HoldsOnly(ConstHostSpan memory, std::byte value);

// Cuts memory into spans of different, odd lengths of at most `longest` bytes. The later half of the memory
// comes first, so that neighbours in the image are not neighbours in memory.
std::vector<HostSpan> Fragment(HostSpan memory, uint64_t longest);
// The spans of image bytes [offset, offset + bytes) when the image lies in `spans`.
std::vector<HostSpan> Slice(const std::vector<HostSpan>& spans, uint64_t offset, uint64_t bytes);
void WritePattern(const std::vector<HostSpan>& image);
bool HoldPattern(const std::vector<HostSpan>& spans, uint64_t image_offset);

// An image in place, with its bytes in `segments` in order. `availability`: its chunks, if the image fills.
class InPlaceImage : public ServedImage {
 public:
  explicit InPlaceImage(std::vector<HostSpan> segments,
                        std::shared_ptr<const Availability> availability = nullptr);
  uint64_t image_bytes() const override { return image_bytes_; }
  bool in_place() const override { return true; }
  std::vector<ConstHostSpan> Segments(uint64_t offset, uint64_t bytes) const override {
    return SliceSegments(segments_, offset, bytes);
  }
  absl::StatusOr<ServedPiece> Read(uint64_t offset, uint64_t bytes) override;
  std::shared_ptr<const Availability> availability() const override { return availability_; }

 private:
  const std::shared_ptr<const Availability> availability_;
  std::vector<ConstHostSpan> segments_;
  uint64_t image_bytes_ = 0;
};

// An image with the bytes of the pattern that is not in place. Each Read writes bytes into one of `slots`
// equal parts of `staging`, and blocks while all parts are held. `before_read` may fail or delay a read.
// `availability`: its chunks, if the image fills. Thread-safe.
class StagedImage : public ServedImage {
 public:
  using ReadHook = std::function<absl::Status(uint64_t offset)>;
  StagedImage(uint64_t image_bytes, HostSpan staging, int slots, ReadHook before_read = nullptr,
              std::shared_ptr<const Availability> availability = nullptr);
  // All pieces must have been released.
  ~StagedImage() override;

  uint64_t image_bytes() const override { return image_bytes_; }
  bool in_place() const override { return false; }
  absl::StatusOr<ServedPiece> Read(uint64_t offset, uint64_t bytes) override ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<const Availability> availability() const override { return availability_; }

 private:
  bool AnyFree() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !free_.empty(); }
  HostSpan TakeSlot() ABSL_LOCKS_EXCLUDED(mutex_);
  void FreeSlot(HostSpan slot) ABSL_LOCKS_EXCLUDED(mutex_);

  const uint64_t image_bytes_;
  const int slots_;
  const ReadHook before_read_;
  const std::shared_ptr<const Availability> availability_;
  absl::Mutex mutex_;
  std::vector<HostSpan> free_ ABSL_GUARDED_BY(mutex_);
};

// Waits until `holds` returns true; calls it again after each change of the availability. False after a
// minute, which no test should need.
bool AwaitChange(const Availability& availability, absl::FunctionRef<bool()> holds);

// Counts and keeps the completions of fetches. Must outlive the fetches. Thread-safe.
class Completions {
 public:
  // Returns the callback for one more fetch.
  FetchDone Expect() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until all expected fetches have completed; false after a minute, which no test should need.
  bool Wait() ABSL_LOCKS_EXCLUDED(mutex_);
  bool WaitForAny() ABSL_LOCKS_EXCLUDED(mutex_);
  // The results in the order of Expect(); UNKNOWN for a fetch that has not completed.
  std::vector<absl::Status> statuses() const ABSL_LOCKS_EXCLUDED(mutex_);
  size_t completed() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The digests of the successful fetches, in the same order.
  std::vector<std::optional<Digest>> digests() const ABSL_LOCKS_EXCLUDED(mutex_);
  // True if a fetch completed more than once.
  bool repeated() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Complete(size_t index, const FetchResult& result) ABSL_LOCKS_EXCLUDED(mutex_);
  bool AllDone() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_ == statuses_.size(); }
  bool AnyDone() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_ > 0; }

  mutable absl::Mutex mutex_;
  std::vector<absl::Status> statuses_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::optional<Digest>> digests_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> complete_ ABSL_GUARDED_BY(mutex_);
  size_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  bool repeated_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tensorcast::transport
