// Which memory of this process is the mapping of a memfd that is sealed for good, as the kernel tells it
// (/proc/self): a tensor there can be handed to a daemon by its descriptor. Private to this folder.
// Thread-compatible; a picture of the moment in which it was read.
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

// Whether a private mapping has pages of its own in place of the file's, because a process wrote to it. True
// where the kernel does not tell.
bool HasOwnPages(std::span<const std::byte> bytes);

class SealedMappings {
 public:
  using FileId = std::pair<dev_t, ino_t>;
  struct Place {
    FileId file;
    uint64_t offset = 0;
  };

  static SealedMappings Read();

  // Where `bytes` lie in a memfd that is sealed WRITE | SHRINK | GROW, and has those very bytes; nullopt
  // where they lie in no such memory, or this process has no descriptor of it any more.
  std::optional<Place> Find(std::span<const std::byte> bytes) const;
  // A descriptor of a file that Find named, of this object.
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
  std::map<FileId, UniqueFd> files_;       // those of them that are sealed
};

}  // namespace tensorcast::client
