// Checks a node's description of itself at registration. Stateless.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tensorcast::v1 {
class Node;
}

namespace tensorcast::global_store {

// INVALID_ARGUMENT names the first field that is too long, not printable (base/text.h) or not valid, or that
// has too many entries. The directory also checks ids and labels.
absl::Status CheckNodeDescription(const v1::Node& node);

// Cuts a text that a node wrote for people to 1000 bytes, and then escapes what is not printable.
std::string ExplanationOf(std::string_view text);

}  // namespace tensorcast::global_store
