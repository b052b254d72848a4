// Checks a node's description of itself at registration, because other nodes connect to its addresses, and
// logs and terminals show its texts. Stateless.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tensorcast::v1 {
class Node;
}

namespace tensorcast::global_store {

// INVALID_ARGUMENT, naming the field, for a registration with texts that are too long or not printable
// (base/text.h), an address that cannot be connected to, or lanes that are not words. The directory itself
// checks for missing ids and for labels.
absl::Status CheckNodeDescription(const v1::Node& node);

// Makes a node's explanation for people printable and cuts it to 1000 bytes: a bad text is not a reason to
// refuse a heartbeat.
std::string ExplanationOf(std::string_view text);

}  // namespace tensorcast::global_store
