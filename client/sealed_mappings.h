// Finds, from /proc/self, memory of this process that maps a memfd sealed against changes. The client hands a
// tensor in such memory to the daemon by descriptor. A SealedMappings is a snapshot from the moment of Read.
// Private to this folder. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include <sys/types.h>

#include "base/posix/unique_fd.h"

namespace tensorcast::client {

// Whether this process has written to pages of `bytes`, which lie in a private mapping. Also true if the
// kernel does not tell.
bool HasOwnPages(std::span<const std::byte> bytes);

class SealedMappings {
 public:
  using FileId = std::pair<dev_t, ino_t>;
  struct Place {
    FileId file;
    uint64_t offset = 0;
  };

  static SealedMappings Read();

  // The place of `bytes` in a memfd that is sealed WRITE | SHRINK | GROW and holds the same content.
  // nullopt if `bytes` lie in other memory, or if this process has closed the memfd's descriptor.
  std::optional<Place> Find(std::span<const std::byte> bytes) const;
  // The descriptor of a file that Find returned. This object owns it.
  int fd(const FileId& file) const { return files_.at(file).get(); }

 private:
  struct Mapping {
    uintptr_t end = 0;
    FileId file;
    uint64_t offset = 0;
    bool is_private = false;
  };

  void ReadMappings();
  void OpenFiles();

  std::map<uintptr_t, Mapping> mappings_;  // of memfds, by their addresses
  std::map<FileId, UniqueFd> files_;       // the sealed memfds among the mapped ones
};

}  // namespace tensorcast::client
