// The order of the tensors in a put with a base. Private to this folder. Thread-safe.
#pragma once

#include <span>
#include <vector>

#include "base/request_context.h"
#include "client/session.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

// Returns `tensors` in the order of the base's tensors, if options.base names a base that has tensors with
// the same names, dtypes and shapes. A difference compares chunks at the same place of both images, so the
// same order keeps the difference small. In all other cases the tensors keep their order. An unknown base is
// not an error here: the daemon later reports why it did not publish a difference. Asks the daemon only if
// the options name a base.
std::vector<PutTensor> InOrderOfBase(Session& session, const RequestContext& operation,
                                     std::span<const PutTensor> tensors, const PutOptions& options);

}  // namespace tensorcast::client
