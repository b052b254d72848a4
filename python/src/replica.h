// A replica and its tensors, as Python sees them: memory that is shown and never copied. Every tensor, and
// every view that another library takes of it, keeps the replica's lease.
//
// Threading: with the GIL, from any thread; nothing changes after construction.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "tensorcast/client.h"

namespace tensorcast::python {

// As Python's Replica. `lifetime` outlives the replica: the device runtime that opened it.
nanobind::object MakeReplica(std::unique_ptr<client::Replica> replica, std::shared_ptr<void> lifetime);

// The replica of an object that MakeReplica made, and what keeps it. Raises TypeError for another object.
std::shared_ptr<const client::Replica> ReplicaOf(nanobind::handle object);

// As Python's RawBytes: memory that the object owns, and that may be written to.
nanobind::object MakeRawBytes(std::vector<std::byte> bytes);

// What a transfer tells, as a dictionary.
nanobind::object TransferSummary(const std::optional<TransferReport>& report);

void BindReplica(nanobind::module_& module);

}  // namespace tensorcast::python
