// What programs do with a store: transfers and keys, as methods of Client that each start a Call and return.
#pragma once

#include "python/src/connection.h"

namespace tensorcast::python {

void BindClient(nanobind::class_<Client>& type);

}  // namespace tensorcast::python
