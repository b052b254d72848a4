// The order of the tensors in a put with a base. Private to this folder. Thread-safe.
#pragma once

#include <span>
#include <vector>

#include "base/request_context.h"
#include "client/session.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

// `tensors` in the order of the base that the options name, where they differ from its tensors in nothing but
// bytes and order: chunks of two versions are compared at the same place of their images. In all other cases
// the tensors keep their order, also where the base is not found: the daemon then says why it made no
// difference. Asks the daemon only where a base is named.
std::vector<PutTensor> InOrderOfBase(Session& session, const RequestContext& operation,
                                     std::span<const PutTensor> tensors, const PutOptions& options);

}  // namespace tensorcast::client
