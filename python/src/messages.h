// The contract's messages as dictionaries of Python.
#pragma once

#include <nanobind/nanobind.h>

namespace google::protobuf {
class Message;
}

namespace tensorcast::python {

// Every field by its name in the .proto file: messages as dictionaries (None where unset), repeated fields as
// lists, enumerations by their names, times and durations as seconds. With the GIL.
nanobind::dict DictOf(const google::protobuf::Message& message);

}  // namespace tensorcast::python
