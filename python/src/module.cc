// tensorcast._native: what the Python package is built on, and no interface for users.
#include <nanobind/nanobind.h>

#include "python/src/call.h"
#include "python/src/changes.h"
#include "python/src/connection.h"
#include "python/src/replica.h"
#include "python/src/tracing.h"

NB_MODULE(_native, module) {
  // Some kinds of subinterpreters are refused by Python itself; those that share everything are not.
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
    throw nanobind::import_error(
        "import tensorcast: subinterpreters are not supported; import it in the main interpreter");
  }
  module.attr("version") = TENSORCAST_VERSION;
  module.doc() = "The client library of TensorCast. Users import tensorcast instead.";
  // What is alive at the interpreter's exit is the program's affair: the kernel gives it back.
  nanobind::set_leak_warnings(false);
  // Types are bound before the functions that return them, so that nanobind's signatures name them.
  tensorcast::python::BindCall(module);
  tensorcast::python::BindReplica(module);
  nanobind::class_<tensorcast::python::Client> client = tensorcast::python::BindConnection(module);
  tensorcast::python::BindTransfers(client);
  tensorcast::python::BindChanges(module, client);
  tensorcast::python::BindAdministration(client);
  tensorcast::python::BindVersions(client);
  tensorcast::python::BindLive(client);
  tensorcast::python::BindTracing(module);
}
