// Converts the messages of proto/ to Python dictionaries.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

namespace google::protobuf {
class Message;
}

namespace tensorcast::python {

// A dictionary with every field, keyed by its name in the .proto file. Message fields become dictionaries
// (None if unset), repeated fields lists, enum values their names, times and durations seconds. Called with
// the GIL.
nanobind::dict DictOf(const google::protobuf::Message& message);

// A list of `convert(value)` for each of `values`. Called with the GIL.
template <class Values, class Convert>
nanobind::list ListOf(Values&& values, Convert convert) {
  nanobind::list made;
  for (auto&& value : values) made.append(convert(std::forward<decltype(value)>(value)));
  return made;
}

}  // namespace tensorcast::python
