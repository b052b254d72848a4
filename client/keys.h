// Key operations, which the daemon passes on to the global store. Private to this folder.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "client/daemon_link.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

absl::StatusOr<KeyInfo> RunBindKey(DaemonLink& link, const RequestContext& context, std::string_view key,
                                   std::string_view artifact_id, std::optional<uint64_t> expected_revision);
absl::StatusOr<KeyInfo> RunResolveKey(DaemonLink& link, const RequestContext& context, std::string_view key);
absl::Status RunDeleteKey(DaemonLink& link, const RequestContext& context, std::string_view key,
                          std::optional<uint64_t> expected_revision);
absl::StatusOr<std::vector<KeyInfo>> RunListKeys(DaemonLink& link, const RequestContext& context,
                                                 std::string_view prefix);
absl::Status RunWatchKeys(DaemonLink& link, const RequestContext& context, std::string_view prefix,
                          const std::function<bool(const KeyInfo&)>& on_key);

}  // namespace tensorcast::client
