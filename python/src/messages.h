// The contract's messages as dictionaries of Python.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

namespace google::protobuf {
class Message;
}

namespace tensorcast::python {

// Every field by its name in the .proto file: messages as dictionaries (None where unset), repeated fields as
// lists, enumerations by their names, times and durations as seconds. With the GIL.
nanobind::dict DictOf(const google::protobuf::Message& message);

// A list of `convert(value)` for each of `values`. With the GIL.
template <class Values, class Convert>
nanobind::list ListOf(Values&& values, Convert convert) {
  nanobind::list made;
  for (auto&& value : values) made.append(convert(std::forward<decltype(value)>(value)));
  return made;
}

}  // namespace tensorcast::python
