// The order of the tensors in a put with a base. Private to this folder. Thread-safe.
#pragma once

#include <span>
#include <vector>

#include "base/request_context.h"
#include "client/session.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

// Returns `tensors` in the base's order if options.base names a base that has tensors with the same names,
// dtypes and shapes. In all other cases, such as an unknown base, returns `tensors` in their own order. A
// difference compares equal offsets of both images, so the base's order keeps the difference small. Calls the
// daemon only if the options name a base.
std::vector<PutTensor> InOrderOfBase(Session& session, const RequestContext& operation,
                                     std::span<const PutTensor> tensors, const PutOptions& options);

}  // namespace tensorcast::client
