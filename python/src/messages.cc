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

nb::object Text(const FieldDescriptor& field, const std::string& value) {
  if (field.type() == FieldDescriptor::TYPE_BYTES) return nb::bytes(value.data(), value.size());
  return nb::str(value.data(), value.size());
}

nb::object ObjectOf(const Message& message) {
  if (message.GetDescriptor() == google::protobuf::Timestamp::descriptor()) {
    const auto& time = static_cast<const google::protobuf::Timestamp&>(message);
    return nb::float_(static_cast<double>(time.seconds()) + time.nanos() * 1e-9);
  }
  if (message.GetDescriptor() == google::protobuf::Duration::descriptor()) {
    const auto& duration = static_cast<const google::protobuf::Duration&>(message);
    return nb::float_(static_cast<double>(duration.seconds()) + duration.nanos() * 1e-9);
  }
  return DictOf(message);
}

nb::object One(const Message& message, const FieldDescriptor& field) {
  const Reflection& values = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return nb::int_(values.GetInt32(message, &field));
    case FieldDescriptor::CPPTYPE_INT64:
      return nb::int_(values.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_UINT32:
      return nb::int_(values.GetUInt32(message, &field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return nb::int_(values.GetUInt64(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return nb::float_(values.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return nb::float_(values.GetFloat(message, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return nb::bool_(values.GetBool(message, &field));
    case FieldDescriptor::CPPTYPE_ENUM:
      return nb::str(values.GetEnum(message, &field)->name().c_str());
    case FieldDescriptor::CPPTYPE_STRING:
      return Text(field, values.GetString(message, &field));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (!values.HasField(message, &field)) return nb::none();
      return ObjectOf(values.GetMessage(message, &field));
  }
  return nb::none();
}

nb::object Element(const Message& message, const FieldDescriptor& field, int i) {
  const Reflection& values = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return nb::int_(values.GetRepeatedInt32(message, &field, i));
    case FieldDescriptor::CPPTYPE_INT64:
      return nb::int_(values.GetRepeatedInt64(message, &field, i));
    case FieldDescriptor::CPPTYPE_UINT32:
      return nb::int_(values.GetRepeatedUInt32(message, &field, i));
    case FieldDescriptor::CPPTYPE_UINT64:
      return nb::int_(values.GetRepeatedUInt64(message, &field, i));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return nb::float_(values.GetRepeatedDouble(message, &field, i));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return nb::float_(values.GetRepeatedFloat(message, &field, i));
    case FieldDescriptor::CPPTYPE_BOOL:
      return nb::bool_(values.GetRepeatedBool(message, &field, i));
    case FieldDescriptor::CPPTYPE_ENUM:
      return nb::str(values.GetRepeatedEnum(message, &field, i)->name().c_str());
    case FieldDescriptor::CPPTYPE_STRING:
      return Text(field, values.GetRepeatedString(message, &field, i));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ObjectOf(values.GetRepeatedMessage(message, &field, i));
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
    map[One(entry, key)] = One(entry, value);
  }
  return map;
}

}  // namespace

nb::dict DictOf(const Message& message) {
  nb::dict fields;
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.is_map()) {
      fields[field.name().c_str()] = MapOf(message, field);
    } else if (field.is_repeated()) {
      nb::list elements;
      for (int j = 0; j < message.GetReflection()->FieldSize(message, &field); ++j) {
        elements.append(Element(message, field, j));
      }
      fields[field.name().c_str()] = elements;
    } else {
      fields[field.name().c_str()] = One(message, field);
    }
  }
  return fields;
}

}  // namespace tensorcast::python
