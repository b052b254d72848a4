// The store daemon's client as Python sees it: each method starts a Call and returns.
#pragma once

#include <nanobind/nanobind.h>

namespace tensorcast::python {

void BindClient(nanobind::module_& module);

}  // namespace tensorcast::python
