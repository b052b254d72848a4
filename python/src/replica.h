// Python's Replica and its tensors. Python reads the tensors in place, without a copy. Every tensor, and
// every view of it in another library, keeps the replica's lease.
//
// Threading: called with the GIL, from any thread; the objects are immutable.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "tensorcast/client.h"

namespace tensorcast::python {

// Makes Python's Replica. The Replica keeps `lifetime`, which owns the device runtime that opened `replica`,
// until the Replica is destroyed.
nanobind::object MakeReplica(std::unique_ptr<client::Replica> replica, std::shared_ptr<void> lifetime);

// The replica of an object that MakeReplica made. The pointer keeps the replica alive. Raises TypeError for
// any other object.
std::shared_ptr<const client::Replica> ReplicaOf(nanobind::handle object);

// Makes Python's RawBytes, which owns these bytes. Python may write to them.
nanobind::object MakeRawBytes(std::vector<std::byte> bytes);

// A transfer report as a dictionary; None without a report.
nanobind::object TransferSummary(const std::optional<TransferReport>& report);

void BindReplica(nanobind::module_& module);

}  // namespace tensorcast::python
