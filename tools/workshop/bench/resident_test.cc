#include "tools/workshop/bench/resident.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

#include "absl/status/status.h"

namespace tensorcast::bench::resident_test {
namespace {

TEST(Smaps, ParseSmaps_CountsPoolsApartFromOtherMemory) {
  EXPECT_EQ(
      ParseSmaps("55d0c0000000-55d0c0100000 r-xp 00000000 fe:00 123   /usr/bin/tensorcast\n"
                 "Size:               1024 kB\n"
                 "Rss:                 100 kB\n"
                 "Pss:                  50 kB\n"
                 "VmFlags: rd ex mr mw me\n"
                 "7f0000000000-7f0040000000 rw-s 00000000 00:01 9   /memfd:tensorcast-host-pool (deleted)\n"
                 "Rss:             1048576 kB\n"
                 "7f0050000000-7f0050100000 rw-p 00000000 00:00 0 \n"
                 "Rss:                  28 kB\n"),
      (ResidentMemory{.pools_bytes = uint64_t{1} << 30, .beyond_bytes = 128 << 10}));
}

TEST(Smaps, ParseSmapsOfEmptyText_CountsNothing) { EXPECT_EQ(ParseSmaps(""), ResidentMemory{}); }

TEST(ResidentMemory, ReadResidentMemory_CountsTouchedMemory) {
  const auto before = ReadResidentMemory(getpid());
  ASSERT_TRUE(before.ok()) << before.status();
  constexpr uint64_t kTouched = uint64_t{64} << 20;
  const std::vector<char> touched(kTouched, 1);
  const auto after = ReadResidentMemory(getpid());
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_GE(after->beyond_bytes + (1 << 20), before->beyond_bytes + kTouched);
  EXPECT_EQ(after->pools_bytes, 0u);
  EXPECT_EQ(touched.back(), 1);
}

TEST(ResidentMemory, ReadResidentMemoryOfMissingProcess_IsNotFound) {
  EXPECT_EQ(ReadResidentMemory(-1).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tensorcast::bench::resident_test
