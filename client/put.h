// Put and Import: a new artifact at the daemon. Private to this folder.
#pragma once

#include <map>
#include <span>
#include <string>

#include "client/daemon_link.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

absl::StatusOr<PutResult> RunPut(DaemonLink& link, const RequestContext& context,
                                 std::span<const PutTensor> tensors,
                                 const std::map<std::string, std::string>& metadata,
                                 const PutOptions& options);

absl::StatusOr<PutResult> RunImport(DaemonLink& link, const RequestContext& context, const std::string& path,
                                    const PutOptions& options);

}  // namespace tensorcast::client
