// Converts the messages of proto/ to Python dictionaries.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

namespace google::protobuf {
class Message;
}

namespace tensorcast::python {

// A dictionary with every field, keyed by the field's name in the .proto file. Called with the GIL.
//   message field     -> dictionary, or None if unset
//   repeated field    -> list
//   enum value        -> the name of the value
//   time or duration  -> seconds
nanobind::dict DictOf(const google::protobuf::Message& message);

// A list of `convert(value)` for each of `values`. Called with the GIL.
template <class Values, class Convert>
nanobind::list ListOf(Values&& values, Convert convert) {
  nanobind::list made;
  for (auto&& value : values) made.append(convert(std::forward<decltype(value)>(value)));
  return made;
}

}  // namespace tensorcast::python
