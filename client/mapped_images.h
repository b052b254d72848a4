// The addresses at which this process has mapped host replicas. A put does not stream an unchanged tensor in
// such a mapping, because the daemon already has the bytes. Private to this folder. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tensorcast::client {

class MappedImages {
 public:
  // A place in a replica's image. `pool_id` identifies one run of one daemon.
  struct Place {
    std::string pool_id;
    std::string replica_id;
    uint64_t image_offset = 0;
    bool writable = false;  // copy-on-write: this process may have private pages with other bytes
  };

  // The mappings of all clients in this process.
  static MappedImages& OfProcess();

  // Records that the memory `image` maps a replica's image from `place` on. Remove deletes this record.
  void Add(std::span<const std::byte> image, Place place);
  void Remove(std::span<const std::byte> image);
  // nullopt unless all of `bytes` lie within one mapping.
  std::optional<Place> Find(std::span<const std::byte> bytes) const;

 private:
  struct Image {
    size_t bytes = 0;
    Place place;
  };

  mutable absl::Mutex mutex_;
  std::map<const std::byte*, Image> images_ ABSL_GUARDED_BY(mutex_);  // by their addresses
};

}  // namespace tensorcast::client
