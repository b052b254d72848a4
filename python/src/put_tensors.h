// The arrays of other libraries, as Client::Put takes them: borrowed, by DLPack or the buffer protocol.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "tensorcast/client.h"

namespace tensorcast::python {

struct PutTensors {
  std::vector<client::PutTensor> tensors;
  nanobind::object keeper;  // while it lives the tensors' memory does
};

// `tensors` has (name, dtype or None, shape or None, array) of each: None means the array's own. With the
// GIL; raises for what is not a packed array, naming it.
PutTensors BorrowTensors(const nanobind::list& tensors);

}  // namespace tensorcast::python
