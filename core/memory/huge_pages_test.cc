#include "core/memory/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "base/posix/unique_fd.h"
#include "core/memory/reserved_range.h"

namespace tensorcast::huge_pages_test {
namespace {

constexpr uint64_t kPageBytes = 4096;

// A memfd, mapped for writing at a huge page's boundary.
struct Memory {
  explicit Memory(uint64_t bytes) : fd(memfd_create("huge_pages_test", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    auto reserved = ReservedRange::Reserve(bytes, "a test");
    EXPECT_TRUE(reserved.ok() && reserved->Map(0, fd.get(), 0, bytes, ReservedRange::Access::kWrite).ok());
    if (reserved.ok()) range = *std::move(reserved);
  }
  std::byte* base() const { return range.base(); }

  UniqueFd fd;
  ReservedRange range;
};

// KiB of the mapping at `base` that smaps has under this name.
uint64_t InSmaps(const std::byte* base, const std::string& name) {
  std::ostringstream begin;
  begin << std::hex << reinterpret_cast<uintptr_t>(base) << "-";
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  while (std::getline(smaps, line) && !line.starts_with(begin.str())) {
  }
  while (std::getline(smaps, line) && !line.starts_with(name + ":")) {
  }
  return line.empty() ? 0 : std::stoull(line.substr(name.size() + 1));
}

TEST(HugePages, AskForHugePages_KeepsBytesAndFileSize) {
  const uint64_t bytes = 3 * kHugePageBytes + 5 * kPageBytes;
  const Memory memory(bytes);
  // Every third page is there before; the last huge page's part has none.
  for (uint64_t at = 0; at < 2 * kHugePageBytes; at += 3 * kPageBytes) memory.base()[at] = std::byte{7};
  AskForHugePages(memory.base(), bytes);
  for (uint64_t at = 0; at < bytes; at += kPageBytes) {
    const bool written = at < 2 * kHugePageBytes && at % (3 * kPageBytes) == 0;
    ASSERT_EQ(memory.base()[at], written ? std::byte{7} : std::byte{0}) << at;
  }
  struct stat file{};
  ASSERT_EQ(fstat(memory.fd.get(), &file), 0);
  EXPECT_EQ(static_cast<uint64_t>(file.st_size), bytes);
}

TEST(HugePages, CopyOnWriteMapping_TakesOneFaultForEachHugePage) {
  const Memory memory(4 * kHugePageBytes);
  AskForHugePages(memory.base(), 4 * kHugePageBytes);
  auto other = ReservedRange::Reserve(4 * kHugePageBytes, "a test");
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(
      other->Map(0, memory.fd.get(), 0, 4 * kHugePageBytes, ReservedRange::Access::kCopyOnWrite).ok());
  const uint64_t huge_kib = InSmaps(memory.base(), "ShmemPmdMapped");
  if (huge_kib == 0) GTEST_SKIP() << "this kernel makes none, or has none left";
  std::byte* const first = other->base();
  for (uint64_t at = 0; at < 4 * kHugePageBytes; at += kHugePageBytes) EXPECT_EQ(first[at], std::byte{0});
  EXPECT_GE(InSmaps(other->base(), "Rss"), huge_kib);
  // What is written there takes one ordinary page, and is not seen here.
  first[0] = std::byte{1};
  EXPECT_EQ(memory.base()[0], std::byte{0});
  EXPECT_EQ(InSmaps(other->base(), "Private_Dirty"), kPageBytes / 1024);
}

TEST(HugePages, RangeSmallerThanHugePage_IsUnchanged) {
  const Memory memory(kPageBytes);
  AskForHugePages(memory.base(), kPageBytes);
  EXPECT_EQ(InSmaps(memory.base(), "Rss"), 0U);
}

}  // namespace
}  // namespace tensorcast::huge_pages_test
