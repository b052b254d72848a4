// Binds client::Changes: the elements that changed between two versions, and writes of them into memory that
// Python owns.
#pragma once

#include <nanobind/nanobind.h>

#include "python/src/connection.h"

namespace tensorcast::python {

void BindChanges(nanobind::module_& module, nanobind::class_<Client>& type);

}  // namespace tensorcast::python
