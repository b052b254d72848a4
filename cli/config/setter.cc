#include "cli/config/setter.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/log/check.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/text.h"
#include "cli/config/schema.h"

namespace tensorcast::config {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row.back();
}

struct Suggestion {
  std::string path;
  size_t distance = std::numeric_limits<size_t>::max();
};

// The closest key of the section and of the sections below it.
void FindClosest(const Descriptor& section, const std::string& prefix, std::string_view key,
                 Suggestion& best) {
  for (int i = 0; i < section.field_count(); ++i) {
    const FieldDescriptor& field = *section.field(i);
    const size_t distance = EditDistance(key, field.name());
    if (distance < best.distance) best = {prefix + field.name(), distance};
    if (field.message_type() != nullptr) {
      FindClosest(*field.message_type(), prefix + field.name() + ".", key, best);
    }
  }
}

absl::Status SetBool(Message& section, const FieldDescriptor& field, const std::string& text) {
  const std::string lower = absl::AsciiStrToLower(text);
  const bool is_true = lower == "true" || lower == "yes" || lower == "on";
  if (!is_true && lower != "false" && lower != "no" && lower != "off") {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not true or false"));
  }
  section.GetReflection()->SetBool(&section, &field, is_true);
  return absl::OkStatus();
}

std::vector<std::string> Items(std::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (absl::ConsumePrefix(&text, "[")) absl::ConsumeSuffix(&text, "]");
  std::vector<std::string> items;
  for (std::string_view item : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    item = absl::StripAsciiWhitespace(item);
    if (item.size() >= 2 && item.front() == item.back() && (item.front() == '"' || item.front() == '\'')) {
      item = item.substr(1, item.size() - 2);
    }
    items.emplace_back(item);
  }
  return items;
}

}  // namespace

absl::Status UnknownKey(const Descriptor& section, std::string_view section_path, std::string_view key) {
  std::string message = absl::StrCat("there is no key \"", key, "\"",
                                     section_path.empty() ? "" : absl::StrCat(" in ", section_path));
  Suggestion best;
  FindClosest(section, "", key, best);
  // Two slips, or a third of a long name: what is further off is not a slip of the hand.
  if (best.distance <= std::max<size_t>(2, key.size() / 3)) {
    absl::StrAppend(&message, "; did you mean \"", best.path, "\"?");
  }
  return absl::InvalidArgumentError(message);
}

absl::Status SetScalar(Message& section, const FieldDescriptor& field, const std::string& text) {
  if (field.message_type() != nullptr) {
    return absl::InvalidArgumentError("this is a section, not a value; name one of the keys in it");
  }
  TC_RETURN_IF_ERROR(CheckText(field, text));
  const Reflection& values = *section.GetReflection();
  int32_t number = 0;
  double fraction = 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return SetBool(section, field, text);
    case FieldDescriptor::CPPTYPE_INT32:
      CHECK(absl::SimpleAtoi(text, &number)) << text;  // as CheckText found
      values.SetInt32(&section, &field, number);
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_DOUBLE:
      CHECK(absl::SimpleAtod(text, &fraction)) << text;
      values.SetDouble(&section, &field, fraction);
      return absl::OkStatus();
    default:
      if (!IsValidUtf8(text)) return absl::InvalidArgumentError("this is not valid UTF-8");
      field.is_repeated() ? values.AddString(&section, &field, text)
                          : values.SetString(&section, &field, text);
      return absl::OkStatus();
  }
}

absl::Status SetByPath(Message& config, std::string_view path, const std::string& text) {
  Message* section = &config;
  std::string section_path;
  const std::vector<std::string> names = absl::StrSplit(path, '.');
  for (size_t i = 0; i < names.size(); ++i) {
    const FieldDescriptor* field = section->GetDescriptor()->FindFieldByName(names[i]);
    if (field == nullptr) return UnknownKey(*section->GetDescriptor(), section_path, names[i]);
    const bool last = i + 1 == names.size();
    if (!last && (field->message_type() == nullptr || field->is_repeated())) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", names[i], "\" is a value, there are no keys in it"));
    }
    if (!last) {
      section = section->GetReflection()->MutableMessage(section, field);
      absl::StrAppend(&section_path, section_path.empty() ? "" : ".", names[i]);
      continue;
    }
    if (!field->is_repeated()) return SetScalar(*section, *field, text);
    // A list that is set takes the place of the default list.
    section->GetReflection()->ClearField(section, field);
    for (const std::string& item : Items(text)) TC_RETURN_IF_ERROR(SetScalar(*section, *field, item));
  }
  return absl::OkStatus();
}

}  // namespace tensorcast::config
