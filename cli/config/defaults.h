// What is known of single keys beyond their type: the default, and what a good value looks like. Keys that
// are not listed default to empty, zero or false, and any value of their type is good.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "proto/config.pb.h"

namespace tensorcast::config {

// INVALID_ARGUMENT when `text` is no good value of the key at `path` ("daemon.host_pool"). An empty text is
// good where the default is empty: there it stands for what the key's comment says.
absl::Status CheckValue(std::string_view path, std::string_view text);

}  // namespace tensorcast::config
