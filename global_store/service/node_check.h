// What a node says of itself, checked where it enters the global store: it ends in addresses that others
// connect to, in logs and on terminals. Stateless.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tensorcast::v1 {
class Node;
}

namespace tensorcast::global_store {

// INVALID_ARGUMENT, naming the field, where a registration has texts that are too long or not printable
// (base/text.h), an address that cannot be connected to, or lanes that are not words. What the directory
// checks itself (ids that are missing, labels) is not checked here.
absl::Status CheckNodeDescription(const v1::Node& node);

// A node's explanation for people, made printable and at most 1000 bytes long: it is not a reason to refuse a
// heartbeat.
std::string ExplanationOf(std::string_view text);

}  // namespace tensorcast::global_store
