// Statuses as Python's exceptions: tensorcast/errors.py has the tree, and chooses among it by the code's
// name.
#pragma once

#include <nanobind/nanobind.h>

#include "absl/status/status.h"

namespace tensorcast::python {

// With the GIL. `status` is an error.
[[noreturn]] void Raise(const absl::Status& status);

// Of a call in a process that was forked: threads and connections stayed with its parent.
[[noreturn]] void RaiseForked();

}  // namespace tensorcast::python
