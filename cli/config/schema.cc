#include "cli/config/schema.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "absl/log/check.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/address.h"
#include "base/posix/state_files.h"
#include "base/status.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/config/config.h"
#include "transport/lanes/lanes.h"

namespace tensorcast::config {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// A whole number or, where the field has fractions, any: within the limits of the key.
template <class Number, bool (*parse)(std::string_view, Number*)>
absl::Status CheckNumber(const FieldDescriptor& field, std::string_view text) {
  const v1::ConfigKey& key = KeyOf(field);
  Number number = 0, min = 0, max = 0;
  // A declaration without limits, or with some that are not numbers, is a bug of ours; config_test meets
  // every key.
  CHECK(parse(key.min(), &min) && parse(key.max(), &max)) << field.full_name();
  if (parse(text, &number) && number >= min && number <= max) return absl::OkStatus();
  const std::string_view kind = std::is_integral_v<Number> ? "whole number" : "number";
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not a ", kind, " from ", key.min(), " to ", key.max()));
}

absl::Status CheckSize(std::string_view text) {
  TC_ASSIGN_OR_RETURN(const uint64_t bytes, ParseSize(text));
  if (bytes > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is too small; give more than 0 bytes"));
}

// With a lower rate a source waits so long between chunks that its receivers take it for stalled.
absl::Status CheckRate(std::string_view text) {
  constexpr uint64_t kMin = uint64_t{1} << 20;
  TC_ASSIGN_OR_RETURN(const uint64_t bytes, ParseSize(text));
  if (bytes == 0 || bytes >= kMin) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is less than 1MiB; give 1MiB a second or more, or 0 for no limit"));
}

std::string ShortestOf(const v1::ConfigKey& key) { return key.min().empty() ? "1ms" : key.min(); }
std::string LongestOf(const v1::ConfigKey& key) { return key.max().empty() ? "365d" : key.max(); }

absl::Status CheckDuration(const v1::ConfigKey& key, std::string_view text) {
  TC_ASSIGN_OR_RETURN(const absl::Duration duration, ParseDuration(text));
  const auto shortest = ParseDuration(ShortestOf(key)), longest = ParseDuration(LongestOf(key));
  CHECK(shortest.ok() && longest.ok()) << key.help();
  if (duration >= *shortest && duration <= *longest) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not between ", ShortestOf(key), " and ", LongestOf(key)));
}

absl::Status CheckListenTcp(std::string_view text) {
  if (IsUnixAddress(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is a unix socket, and host:port is expected; see daemon.unix_socket"));
  }
  return CheckListenAddress(text);
}

absl::Status CheckAdvertise(std::string_view text) {
  TC_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(text));
  if (!IsWildcard(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", text, "\" means every address of this host; give the address that other hosts connect to"));
}

// Several addresses are those of global stores that stand in for each other. They are on other hosts, so none
// of them can be a unix socket.
absl::Status CheckServerAddresses(std::string_view text) {
  const std::vector<std::string_view> all = absl::StrSplit(text, ',');
  if (all.size() == 1) return CheckServerAddress(text);
  for (const std::string_view one : all) {
    TC_RETURN_IF_ERROR(ParseHostPort(one).status());
    TC_RETURN_IF_ERROR(CheckServerAddress(one));
  }
  return absl::OkStatus();
}

// The only values, if there are any.
std::vector<std::string> ChoicesOf(const v1::ConfigKey& key) {
  if (key.form() == v1::ConfigKey::TRANSPORT) return transport::TransportLaneNames();
  return {key.choices().begin(), key.choices().end()};
}

absl::Status CheckChoice(const std::vector<std::string>& choices, std::string_view text) {
  if (std::ranges::find(choices, text) != choices.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not one of ", absl::StrJoin(choices, ", ")));
}

// The forms in which every key takes the same values: what people are told of them, and their check.
struct Form {
  v1::ConfigKey::Form form;
  std::string_view expected;
  absl::Status (*check)(std::string_view text);  // null: the component of the key takes it apart
};
constexpr Form kForms[] = {
    {v1::ConfigKey::SIZE, "a size, such as 64GiB", CheckSize},
    {v1::ConfigKey::RATE, "bytes a second, such as 500MB, at least 1MiB; or 0", CheckRate},
    {v1::ConfigKey::LISTEN, "host:port or unix:/path", CheckListenAddress},
    {v1::ConfigKey::LISTEN_TCP, "host:port", CheckListenTcp},
    {v1::ConfigKey::ADVERTISE, "host:port", CheckAdvertise},
    {v1::ConfigKey::SERVER, "host:port or unix:/path", CheckServerAddress},
    {v1::ConfigKey::SERVERS, "host:port or unix:/path; or host:port,host:port,..", CheckServerAddresses},
    {v1::ConfigKey::SOCKET_PATH, "a path", CheckSocketPath},
    {v1::ConfigKey::PAIRS, "name=value", nullptr},
};

// Null for DURATION, which depends on its key, and for those that take any text.
const Form* FormOf(const v1::ConfigKey& key) {
  const auto* const form = std::ranges::find(kForms, key.form(), &Form::form);
  return form == std::end(kForms) ? nullptr : form;
}

bool IsNumber(const FieldDescriptor& field) {
  return field.cpp_type() != FieldDescriptor::CPPTYPE_STRING &&
         field.cpp_type() != FieldDescriptor::CPPTYPE_BOOL;
}

std::string Expected(const FieldDescriptor& field) {
  const v1::ConfigKey& key = KeyOf(field);
  if (const auto choices = ChoicesOf(key); !choices.empty()) return absl::StrJoin(choices, ", ");
  if (IsNumber(field)) return absl::StrCat(key.min(), " to ", key.max());
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) return "true or false";
  if (key.form() == v1::ConfigKey::DURATION) {
    return absl::StrCat("a duration, ", ShortestOf(key), " to ", LongestOf(key));
  }
  const Form* form = FormOf(key);
  return form == nullptr ? "" : std::string(form->expected);
}

// Sets what this section and those below it declare.
void SetDefaults(const Descriptor& section, const std::string& prefix, std::string_view state_folder,
                 v1::Config& config) {
  for (int i = 0; i < section.field_count(); ++i) {
    const FieldDescriptor& field = *section.field(i);
    const std::string path = prefix + field.name();
    if (field.message_type() != nullptr) {
      SetDefaults(*field.message_type(), path + ".", state_folder, config);
    } else if (const std::string& value = KeyOf(field).default_value(); !value.empty()) {
      // A default that its own key refuses is a bug of ours.
      CHECK_OK(SetByPath(config, path, absl::StrReplaceAll(value, {{"$STATE", state_folder}}))) << path;
    }
  }
}

// Levenshtein's: insertions, deletions and changes of one character. Of the table only one row is kept;
// `diagonal` is the value above and to the left.
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

// The words that YAML 1.1 has for truth, in a file and in --set alike.
absl::Status SetBool(Message& section, const FieldDescriptor& field, const std::string& text) {
  const std::string lower = absl::AsciiStrToLower(text);
  const bool is_true = lower == "true" || lower == "yes" || lower == "on";
  if (!is_true && lower != "false" && lower != "no" && lower != "off") {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not true or false"));
  }
  section.GetReflection()->SetBool(&section, &field, is_true);
  return absl::OkStatus();
}

// The items of a list in --set: [a, b] or a,b, each with or without quotes. A comma ends an item also within
// quotes; a file has YAML for such values.
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

const v1::ConfigKey& KeyOf(const FieldDescriptor& field) { return field.options().GetExtension(v1::key); }

// Only the form of one value. What several keys have to agree on is checked by the options of the room that
// reads them (Validate).
absl::Status CheckText(const FieldDescriptor& field, std::string_view text) {
  const v1::ConfigKey& key = KeyOf(field);
  const bool any = key.form() == v1::ConfigKey::ANY && key.choices().empty() && !IsNumber(field);
  if (any) return absl::OkStatus();
  // The empty text means "work it out", and only where the key's own default is that.
  if (text.empty()) {
    if (key.default_value().empty() && !IsNumber(field)) return absl::OkStatus();
    return absl::InvalidArgumentError("a value is needed here; leave the key out to have the default");
  }
  if (const auto choices = ChoicesOf(key); !choices.empty()) return CheckChoice(choices, text);
  if (IsNumber(field)) {
    return field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE
               ? CheckNumber<double, absl::SimpleAtod>(field, text)
               : CheckNumber<int64_t, absl::SimpleAtoi<int64_t>>(field, text);
  }
  if (key.form() == v1::ConfigKey::DURATION) return CheckDuration(key, text);
  const Form* form = FormOf(key);
  return form == nullptr || form->check == nullptr ? absl::OkStatus() : form->check(text);
}

std::string HelpOf(const FieldDescriptor& field) {
  const std::string expected = Expected(field);
  const std::string_view list = field.is_repeated() ? "a list" : "";
  if (expected.empty() && list.empty()) return KeyOf(field).help();
  return absl::StrCat(KeyOf(field).help(), " [", list, !list.empty() && !expected.empty() ? ": " : "",
                      expected, "]");
}

v1::Config DefaultsWith(std::string_view state_folder) {
  v1::Config config;
  SetDefaults(*v1::Config::descriptor(), "", state_folder, config);
  return config;
}

v1::Config Defaults() { return DefaultsWith(DefaultStateFolder()); }

// The suggestion is looked for in the section and below it, so a key that was written one level too high is
// found, too.
absl::Status UnknownKey(const Descriptor& section, std::string_view section_path, std::string_view key) {
  std::string message = absl::StrCat("there is no key \"", key, "\"",
                                     section_path.empty() ? "" : absl::StrCat(" in ", section_path));
  Suggestion best;
  FindClosest(section, "", key, best);
  // Two slips, or a third of a long name: what is further off is not a slip of the hand.
  if (best.distance <= std::max<size_t>(2, key.size() / 3)) {
    absl::StrAppend(&message, "; did you mean \"", best.path, "\"?");
  } else {
    absl::StrAppend(&message, "; `tensorcast config show` lists all keys");
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
      if (!IsValidUtf8(text)) {
        return absl::InvalidArgumentError("the value is not valid UTF-8; encode the value as UTF-8");
      }
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
      return absl::InvalidArgumentError(absl::StrCat("\"", names[i], "\" is a value, and has no keys; set ",
                                                     section_path, section_path.empty() ? "" : ".", names[i],
                                                     " itself"));
    }
    if (!last) {
      section = section->GetReflection()->MutableMessage(section, field);
      absl::StrAppend(&section_path, section_path.empty() ? "" : ".", names[i]);
      continue;
    }
    if (!field->is_repeated()) return SetScalar(*section, *field, text);
    // A list that is set replaces the default list; SetScalar then appends each item.
    section->GetReflection()->ClearField(section, field);
    for (const std::string& item : Items(text)) TC_RETURN_IF_ERROR(SetScalar(*section, *field, item));
  }
  return absl::OkStatus();
}

}  // namespace tensorcast::config
