// Binds client::Changes for Python: finds the elements that changed between two versions, and writes them
// into memory that Python owns.
#pragma once

#include <nanobind/nanobind.h>

#include "python/src/connection.h"

namespace tensorcast::python {

void BindChanges(nanobind::module_& module, nanobind::class_<Client>& type);

}  // namespace tensorcast::python
