// Where this process has mapped replicas of host memory. A tensor that lies there need not be streamed when
// it is put: the daemon of that memory has its bytes. Private to this folder. Thread-safe.
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
  // A place in a replica. The pool's id names one run of one daemon.
  struct Place {
    std::string pool_id;
    std::string replica_id;
    uint64_t image_offset = 0;
    bool writable = false;  // this process may have changed it, in pages of its own
  };

  // All of the process, of every client in it.
  static MappedImages& OfProcess();

  // `image` is the mapping of `place` until Remove.
  void Add(std::span<const std::byte> image, Place place);
  void Remove(std::span<const std::byte> image);
  // nullopt for bytes that do not lie within one of them.
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
