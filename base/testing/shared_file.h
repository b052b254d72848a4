// Memory that a test and the processes it starts share by a file, such as the switches of a stand-in's
// faults.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tensorcast::testing {

// The file's first `bytes`, zeros where there were none; makes it where there is none. Mapped as long as it
// is held.
absl::StatusOr<std::shared_ptr<void>> OpenSharedFile(const std::string& path, uint64_t bytes);

}  // namespace tensorcast::testing
