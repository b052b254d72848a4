// Spans of Python code, and what exports them: tensorcast/tracing.py is their interface.
#pragma once

#include <nanobind/nanobind.h>

namespace tensorcast::python {

void BindTracing(nanobind::module_& module);

}  // namespace tensorcast::python
