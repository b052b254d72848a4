// Memory that a test shares through a file with the processes that it starts, such as the fault switches of a
// stand-in.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tensorcast::testing {

// Maps the first `bytes` of the file, as long as the pointer is held. A missing file is made; missing bytes
// are zero.
absl::StatusOr<std::shared_ptr<void>> OpenSharedFile(const std::string& path, uint64_t bytes);

}  // namespace tensorcast::testing
