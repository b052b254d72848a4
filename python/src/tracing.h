// Binds spans for Python code, and the telemetry that exports them, for tensorcast/tracing.py.
#pragma once

#include <nanobind/nanobind.h>

namespace tensorcast::python {

void BindTracing(nanobind::module_& module);

}  // namespace tensorcast::python
