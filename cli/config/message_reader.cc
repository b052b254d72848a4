#include "cli/config/message_reader.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/units.h"

namespace tensorcast::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// A key in the section that has it.
struct Place {
  const Message& section;
  const google::protobuf::Reflection& values;
  const FieldDescriptor* field;
};

Place Find(const Message& config, std::string_view key) {
  const Message* section = &config;
  const FieldDescriptor* field = nullptr;
  for (const std::string_view name : absl::StrSplit(key, '.')) {
    if (field != nullptr) section = &section->GetReflection()->GetMessage(*section, field);
    field = section->GetDescriptor()->FindFieldByName(std::string(name));
    CHECK(field != nullptr) << key;  // a room reads what config.proto does not declare
  }
  return {*section, *section->GetReflection(), field};
}

std::string TextOf(const Place& place) { return place.values.GetString(place.section, place.field); }

// An empty text leaves the default of the room.
template <class T>
void ReadText(const Place& place, std::string_view key, absl::StatusOr<T> (*parse)(std::string_view),
              T& value, Findings& findings) {
  const std::string text = TextOf(place);
  if (text.empty()) return;
  const absl::StatusOr<T> parsed = parse(text);
  // A value that cannot be parsed is noted and reading goes on, so that one run shows every mistake.
  findings.Add(key, parsed.status());
  if (parsed.ok()) value = *parsed;
}

}  // namespace

void MessageReader::Read(std::string_view key, bool& value) {
  const Place place = Find(config_, key);
  value = place.values.GetBool(place.section, place.field);
}

void MessageReader::Read(std::string_view key, int& value) {
  const Place place = Find(config_, key);
  value = place.values.GetInt32(place.section, place.field);
}

void MessageReader::Read(std::string_view key, uint64_t& value) {
  ReadText(Find(config_, key), key, ParseSize, value, findings());
}

void MessageReader::Read(std::string_view key, absl::Duration& value) {
  ReadText(Find(config_, key), key, ParseDuration, value, findings());
}

void MessageReader::Read(std::string_view key, std::string& value) { value = TextOf(Find(config_, key)); }

// A single value is a list of one, so that a room reads it in the same way as a list.
void MessageReader::Read(std::string_view key, std::vector<std::string>& value) {
  const Place place = Find(config_, key);
  value.clear();
  if (place.field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
    value.push_back(absl::StrCat(place.values.GetInt32(place.section, place.field)));
  } else if (!place.field->is_repeated()) {
    if (std::string text = TextOf(place); !text.empty()) value.push_back(std::move(text));
  } else {
    for (int i = 0; i < place.values.FieldSize(place.section, place.field); ++i) {
      value.push_back(place.values.GetRepeatedString(place.section, place.field, i));
    }
  }
}

}  // namespace tensorcast::config
