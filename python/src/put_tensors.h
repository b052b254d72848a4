// Borrows arrays of other libraries for Client::Put, by DLPack or the buffer protocol.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "tensorcast/client.h"

namespace tensorcast::python {

struct PutTensors {
  std::vector<client::PutTensor> tensors;
  nanobind::object keeper;  // keeps the tensors' memory alive
};

// `tensors` has a tuple (name, dtype or None, shape or None, array) for each tensor; None stands for the
// dtype or shape of the array. Called with the GIL. Raises an error with the tensor's name if `array` is
// not an array or has gaps.
PutTensors BorrowTensors(const nanobind::list& tensors);

}  // namespace tensorcast::python
