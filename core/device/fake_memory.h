// One allocation of the fake backend: a memfd, so that another process can open it, and its mapping here.
// Private to this folder. Thread-safe, but no lock protects the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/device/ipc_format.h"

namespace tensorcast {

class FakeMemory {
 public:
  // Makes resident memory: later copies take no page faults.
  static absl::StatusOr<std::shared_ptr<FakeMemory>> Create(uint64_t bytes);

  // Opens memory of another process. The memory stays open when the other process ends later. NOT_FOUND if
  // the other process has ended or has freed the memory.
  static absl::StatusOr<std::shared_ptr<FakeMemory>> Open(const FakeIpcFields& fields, uint64_t bytes);

  FakeMemory(const FakeMemory&) = delete;
  FakeMemory& operator=(const FakeMemory&) = delete;
  ~FakeMemory();

  std::byte* data() const { return data_; }
  FakeIpcFields ipc_fields() const;

 private:
  FakeMemory(int fd, uint64_t bytes, std::string uuid) : fd_(fd), bytes_(bytes), uuid_(std::move(uuid)) {}
  absl::Status Map();
  absl::Status MakeResident();
  absl::Status Populate(uint64_t offset, uint64_t bytes);

  const int fd_;
  const uint64_t bytes_;
  const std::string uuid_;
  std::byte* data_ = nullptr;
};

}  // namespace tensorcast
