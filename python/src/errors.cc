#include "python/src/errors.h"

#include <nanobind/stl/string.h>

#include <string>

namespace tensorcast::python {
namespace {

[[noreturn]] void RaiseAs(const std::string& code, std::string_view message) {
  const nanobind::object error =
      nanobind::module_::import_("tensorcast.errors").attr("of_status")(code, std::string(message));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nanobind::python_error();
}

}  // namespace

void Raise(const absl::Status& status) { RaiseAs(absl::StatusCodeToString(status.code()), status.message()); }

void RaiseForked() {
  RaiseAs("FORKED",
          "call of the store: this process was forked from one that had connected, and connections do not "
          "survive that; arrays that were got before the fork stay readable here; to call the store start "
          "the process by \"spawn\" or \"forkserver\" (DataLoader: multiprocessing_context=\"spawn\"), or "
          "connect in forked processes alone");
}

}  // namespace tensorcast::python
