// The kernel resources of a process: descriptors by kind, threads, and mappings of memfds. Functions only.
// Errors: NOT_FOUND when the process is gone.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace tensorcast::chaos {

struct Footprint {
  std::map<std::string, int> descriptors;  // by kind: "socket", "memfd", "eventfd", "file", ...
  int threads = 0;
  int memfd_mappings = 0;

  int descriptor_count() const;
  std::string ToString() const;
};

absl::StatusOr<Footprint> MeasureFootprint(pid_t pid);

// INTERNAL, naming what grew, when `now` exceeds `before` by more than `slack` in any kind; for threads by a
// little more, to allow for those of gRPC.
absl::Status CompareFootprints(const Footprint& before, const Footprint& now, int slack);

}  // namespace tensorcast::chaos
