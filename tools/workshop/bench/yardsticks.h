// References that need no other program: one thread's memcpy, and reading a file. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tensorcast::bench {

// Two buffers with all pages touched; the calling thread copies one to the other.
class PlainCopy {
 public:
  explicit PlainCopy(uint64_t bytes) : from_(bytes, std::byte{1}), to_(bytes, std::byte{2}) {}
  double GbPerSecond();

 private:
  std::vector<std::byte> from_;
  std::vector<std::byte> to_;
};

// read() of the whole file into new memory; GB/s.
absl::StatusOr<double> ReadIntoFreshMemory(const std::string& path);

// Drops the file's pages from the page cache. Returns the bytes that stayed in it (usually 0).
absl::StatusOr<uint64_t> DropFromPageCache(const std::string& path);

// Reads the file so that its pages are in the page cache.
absl::Status WarmPageCache(const std::string& path);

}  // namespace tensorcast::bench
