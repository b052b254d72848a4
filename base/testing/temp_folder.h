// A folder for one test: its constructor makes the folder, its destructor removes it with its content.
// Thread-compatible.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tensorcast::testing {

class TempFolder {
 public:
  // In GoogleTest's folder (TEST_TMPDIR, or /tmp): a short path, as unix sockets need it.
  TempFolder();
  // In `parent`, for effects that a folder in memory, or on another file system, would not show.
  explicit TempFolder(std::string_view parent);
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  // Absolute and without links.
  const std::string& path() const { return path_; }
  // The path of a file of that name in the folder; the file need not exist.
  std::string File(std::string_view name) const;
  // The names in the folder, sorted.
  std::vector<std::string> Names() const;

 private:
  std::string path_;
};

}  // namespace tensorcast::testing
