// The lane of chunks that are rebuilt from a base and differences, which are replicas in this node's host
// memory. Declared apart from the other lanes (transfer_report.h), which most of the code includes.
//
// No lane between nodes, and none that a request may ask for: reports and metrics name it. Its sources are of
// type kLocal, yet their bytes come from a peer's word: with distrust_other_hosts both digests are compared.
#pragma once

#include <string_view>

namespace tensorcast {

// The source's name is the id of the base.
inline constexpr std::string_view kDifferenceLane = "difference";

}  // namespace tensorcast
