// A replica and its tensors, as Python sees them: memory that is shown and never copied. Every tensor, and
// every view that another library takes of it, keeps the replica's lease.
//
// Threading: with the GIL, from any thread; nothing changes after construction.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "tensorcast/client.h"

namespace tensorcast::python {

// As Python's Replica. `lifetime` outlives the replica: the device runtime that opened it.
nanobind::object MakeReplica(std::unique_ptr<client::Replica> replica, std::shared_ptr<void> lifetime);

// What a transfer tells, as a dictionary.
nanobind::object TransferSummary(const std::optional<TransferReport>& report);

void BindReplica(nanobind::module_& module);

}  // namespace tensorcast::python
