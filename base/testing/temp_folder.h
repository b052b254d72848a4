// A folder of a test's own, made when it begins and removed with what is in it at its end. Thread-compatible.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tensorcast::testing {

class TempFolder {
 public:
  // Where GoogleTest puts its own files (TEST_TMPDIR, or /tmp): a short path, as those of unix sockets are.
  TempFolder();
  // For what a folder in memory, or another file system, would not show.
  explicit TempFolder(std::string_view parent);
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  // Absolute and without links.
  const std::string& path() const { return path_; }
  // Of a file of that name in it, which need not exist.
  std::string File(std::string_view name) const;
  // What is in it, in order.
  std::vector<std::string> Names() const;

 private:
  std::string path_;
};

}  // namespace tensorcast::testing
