#include "python/src/messages.h"

#include <google/protobuf/duration.pb.h>
#include <google/protobuf/message.h>
#include <google/protobuf/timestamp.pb.h>

#include <string>

namespace nb = nanobind;

namespace tensorcast::python {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Fields of type string are UTF-8, which protobuf checks when it parses. Fields of type bytes may be
// anything.
nb::object Text(const FieldDescriptor& field, const std::string& value) {
  if (field.type() == FieldDescriptor::TYPE_BYTES) return nb::bytes(value.data(), value.size());
  return nb::str(value.data(), value.size());
}

nb::object ObjectOf(const Message& message) {
  using google::protobuf::Duration, google::protobuf::Timestamp;
  // Times and durations become seconds, as Python's clocks give them.
  const auto seconds = [](const auto& time) {
    return nb::float_(static_cast<double>(time.seconds()) + time.nanos() * 1e-9);
  };
  if (message.GetDescriptor() == Timestamp::descriptor()) {
    return seconds(static_cast<const Timestamp&>(message));
  }
  if (message.GetDescriptor() == Duration::descriptor()) {
    return seconds(static_cast<const Duration&>(message));
  }
  return DictOf(message);
}

// The value of a field, or of its element `i` where the field is repeated.
nb::object Value(const Message& message, const FieldDescriptor& field, int i = 0) {
  const Reflection& values = *message.GetReflection();
  const auto get = [&](auto one, auto element) -> decltype(auto) {
    return field.is_repeated() ? (values.*element)(message, &field, i) : (values.*one)(message, &field);
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return nb::int_(get(&Reflection::GetInt32, &Reflection::GetRepeatedInt32));
    case FieldDescriptor::CPPTYPE_INT64:
      return nb::int_(get(&Reflection::GetInt64, &Reflection::GetRepeatedInt64));
    case FieldDescriptor::CPPTYPE_UINT32:
      return nb::int_(get(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32));
    case FieldDescriptor::CPPTYPE_UINT64:
      return nb::int_(get(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return nb::float_(get(&Reflection::GetDouble, &Reflection::GetRepeatedDouble));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return nb::float_(get(&Reflection::GetFloat, &Reflection::GetRepeatedFloat));
    case FieldDescriptor::CPPTYPE_BOOL:
      return nb::bool_(get(&Reflection::GetBool, &Reflection::GetRepeatedBool));
    case FieldDescriptor::CPPTYPE_ENUM:
      // Enums are given by name, as numbers would mean nothing without the .proto files.
      return nb::str(get(&Reflection::GetEnum, &Reflection::GetRepeatedEnum)->name().c_str());
    case FieldDescriptor::CPPTYPE_STRING:
      return Text(field, get(&Reflection::GetString, &Reflection::GetRepeatedString));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (field.is_repeated()) return ObjectOf(values.GetRepeatedMessage(message, &field, i));
      // None for a message that is not set, which is not the same as an empty one.
      if (!values.HasField(message, &field)) return nb::none();
      return ObjectOf(values.GetMessage(message, &field));
  }
  return nb::none();
}

// A map's entries are messages of a key and a value.
nb::dict MapOf(const Message& message, const FieldDescriptor& field) {
  nb::dict map;
  const Reflection& values = *message.GetReflection();
  const FieldDescriptor& key = *field.message_type()->map_key();
  const FieldDescriptor& value = *field.message_type()->map_value();
  for (int i = 0; i < values.FieldSize(message, &field); ++i) {
    const Message& entry = values.GetRepeatedMessage(message, &field, i);
    map[Value(entry, key)] = Value(entry, value);
  }
  return map;
}

}  // namespace

nb::dict DictOf(const Message& message) {
  nb::dict fields;
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  // Every field is there, whether it is set or not, so that callers need no defaults.
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.is_map()) {
      fields[field.name().c_str()] = MapOf(message, field);
    } else if (field.is_repeated()) {
      nb::list elements;
      for (int j = 0; j < message.GetReflection()->FieldSize(message, &field); ++j) {
        elements.append(Value(message, field, j));
      }
      fields[field.name().c_str()] = elements;
    } else {
      fields[field.name().c_str()] = Value(message, field);
    }
  }
  return fields;
}

}  // namespace tensorcast::python
