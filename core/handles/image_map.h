// A replica's extents of the pool, mapped side by side for reading. Internal to this folder; immutable.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/handles/handles.h"

namespace tensorcast {

class ImageMap {
 public:
  // INVALID_ARGUMENT when the extents do not lie in the pool, hold less than the image, or cannot be laid
  // side by side; RESOURCE_EXHAUSTED when this process may map no more.
  static absl::StatusOr<std::unique_ptr<ImageMap>> Map(int pool_fd, const HostHandles& host,
                                                       uint64_t image_bytes);
  ~ImageMap();
  ImageMap(const ImageMap&) = delete;
  ImageMap& operator=(const ImageMap&) = delete;

  ConstHostSpan image() const { return {base_, image_bytes_}; }

 private:
  ImageMap(std::byte* base, uint64_t mapped_bytes, uint64_t image_bytes)
      : base_(base), mapped_bytes_(mapped_bytes), image_bytes_(image_bytes) {}

  std::byte* const base_;
  const uint64_t mapped_bytes_;
  const uint64_t image_bytes_;
};

}  // namespace tensorcast
