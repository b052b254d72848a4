#include "base/testing/temp_folder.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"

namespace tensorcast::testing {

TempFolder::TempFolder() : TempFolder(::testing::TempDir()) {}

TempFolder::TempFolder(std::string_view parent)
    : path_(absl::StrCat(std::filesystem::canonical(parent).string(), "/tc-XXXXXX")) {
  PCHECK(mkdtemp(path_.data()) != nullptr) << path_;
}

TempFolder::~TempFolder() {
  std::error_code ignored;  // a test may have taken the right to, or the folder itself
  std::filesystem::remove_all(path_, ignored);
}

std::string TempFolder::File(std::string_view name) const { return absl::StrCat(path_, "/", name); }

std::vector<std::string> TempFolder::Names() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace tensorcast::testing
