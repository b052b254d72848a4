#include "core/device/page_locked_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "base/status.h"

namespace tensorcast {

absl::StatusOr<PageLockedMemory> PageLockedMemory::Create(DeviceRuntime* devices, uint64_t bytes) {
  void* const pages =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
  if (pages == MAP_FAILED) return ErrnoStatus(errno, "mmap", "page-locked memory");
  auto* const memory = static_cast<std::byte*>(pages);
  if (absl::Status locked = devices->RegisterHost(memory, bytes, HostAccess::kReadWrite); !locked.ok()) {
    munmap(pages, bytes);
    return locked;
  }
  return PageLockedMemory(devices, {memory, bytes});
}

PageLockedMemory::PageLockedMemory(PageLockedMemory&& other) noexcept
    : devices_(other.devices_), bytes_(std::exchange(other.bytes_, {})) {}

PageLockedMemory::~PageLockedMemory() {
  if (bytes_.empty()) return;
  devices_->UnregisterHost(bytes_.data()).IgnoreError();
  munmap(bytes_.data(), bytes_.size());
}

}  // namespace tensorcast
