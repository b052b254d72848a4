#include "python/src/errors.h"

#include <nanobind/stl/string.h>

#include <string>

namespace tensorcast::python {
namespace {

// The class is chosen in Python, which has the only list of them.
[[noreturn]] void RaiseAs(const std::string& code, std::string_view message) {
  const nanobind::object error =
      nanobind::module_::import_("tensorcast.errors").attr("of_status")(code, std::string(message));
  // The exception is set as Python's current error, and a C++ exception carries it out.
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nanobind::python_error();
}

}  // namespace

void Raise(const absl::Status& status) { RaiseAs(absl::StatusCodeToString(status.code()), status.message()); }

void RaiseForked() {
  RaiseAs(
      "FORKED",
      "call the store: this process was forked from a connected process, and a connection does not work "
      "after a fork; arrays from before the fork stay readable here; to call the store, start this process "
      "with \"spawn\" or \"forkserver\" (DataLoader: multiprocessing_context=\"spawn\"), or connect only in "
      "forked processes");
}

}  // namespace tensorcast::python
