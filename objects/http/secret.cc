#include "objects/http/secret.h"

#include <sys/mman.h>

#include <cstring>

#include "absl/log/check.h"

namespace tensorcast::objects {

struct Secret::Bytes {
  explicit Bytes(std::string_view text)
      : size(text.size()),
        // A mapping of its own: MADV_DONTDUMP works on whole pages, and pages of the heap hold other data.
        memory(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    CHECK(memory != MAP_FAILED) << "out of memory for a secret";
    madvise(memory, size, MADV_DONTDUMP);  // a kernel without it has it in core files
    std::memcpy(memory, text.data(), size);
  }
  ~Bytes() {
    // memset would be dropped by the compiler, since the memory is not read again.
    explicit_bzero(memory, size);
    munmap(memory, size);
  }
  const size_t size;
  void* const memory;
};

Secret::Secret(std::string_view text) {
  if (!text.empty()) bytes_ = std::make_shared<Bytes>(text);
}

std::string_view Secret::Reveal() const {
  if (bytes_ == nullptr) return {};
  return {static_cast<const char*>(bytes_->memory), bytes_->size};
}

}  // namespace tensorcast::objects
