// What operators do with a store: its status, its artifacts and replicas, tasks, as methods of Client.
#pragma once

#include "python/src/connection.h"

namespace tensorcast::python {

void BindAdministration(nanobind::class_<Client>& type);

}  // namespace tensorcast::python
