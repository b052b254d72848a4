#include "tests/robustness/settable_clock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace tensorcast {
namespace {

constexpr char kFakeTime[] = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

}  // namespace

std::string SettableClock::Missing() {
  if (access(kFakeTime, R_OK) == 0) return "";
  return absl::StrCat(kFakeTime, " is not there: install the package faketime (tools/setup.sh does)");
}

SettableClock::SettableClock(const std::string& folder)
    : offset_(folder + "/offset"),
      environment_({{"LD_PRELOAD", kFakeTime},
                    {"FAKETIME_TIMESTAMP_FILE", offset_},
                    // Read at each call, or a process would see a new offset only after the library's cache
                    // expires.
                    {"FAKETIME_NO_CACHE", "1"},
                    {"FAKETIME_DONT_FAKE_MONOTONIC", "1"},
                    {"FAKETIME_DONT_RESET", "1"}}) {
  Set("+0");
}

// Whole at once: a process may read it at any moment.
void SettableClock::Set(const std::string& offset) const {
  std::ofstream(offset_ + ".new") << offset;
  ASSERT_EQ(rename((offset_ + ".new").c_str(), offset_.c_str()), 0);
}

void SettableClock::RemoveSharedMemoryOf(int killed) {
  for (const char* name : {"faketime_shm_", "sem.faketime_sem_"}) {
    EXPECT_EQ(unlink(absl::StrCat("/dev/shm/", name, killed).c_str()), 0) << name << killed;
  }
}

}  // namespace tensorcast
