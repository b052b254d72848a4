// Binds spans for Python code, and the telemetry that exports them. tensorcast/tracing.py uses both.
#pragma once

#include <nanobind/nanobind.h>

namespace tensorcast::python {

void BindTracing(nanobind::module_& module);

}  // namespace tensorcast::python
