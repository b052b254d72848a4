#include "cli/config/secrets.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "proto/config_key.pb.h"

namespace tensorcast::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr std::string_view kHidden = "(hidden)";

// "https://user:password@host/path": what stands between "://" and "@", within the authority.
std::string WithoutUser(const std::string& text) {
  const size_t scheme = text.find("://");
  if (scheme == std::string::npos) return text;
  const size_t begin = scheme + 3;
  const size_t end = text.find_first_of("/?#", begin);
  const size_t at = text.substr(0, end).rfind('@');
  if (at == std::string::npos || at < begin) return text;
  return absl::StrCat(text.substr(0, begin), kHidden, text.substr(at));
}

std::string Shown(const FieldDescriptor& field, const std::string& text) {
  if (!field.options().GetExtension(v1::key).secret() || text.empty()) return WithoutUser(text);
  // Of name=value the name says what is hidden.
  const size_t equals = text.find('=');
  return absl::StrCat(equals == std::string::npos ? "" : text.substr(0, equals + 1), kHidden);
}

void Hide(Message& section) {
  const google::protobuf::Reflection& values = *section.GetReflection();
  for (int i = 0; i < section.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *section.GetDescriptor()->field(i);
    if (field.message_type() != nullptr) {
      if (values.HasField(section, &field)) Hide(*values.MutableMessage(&section, &field));
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      for (int item = 0; field.is_repeated() && item < values.FieldSize(section, &field); ++item) {
        values.SetRepeatedString(&section, &field, item,
                                 Shown(field, values.GetRepeatedString(section, &field, item)));
      }
      if (!field.is_repeated()) {
        values.SetString(&section, &field, Shown(field, values.GetString(section, &field)));
      }
    }
  }
}

}  // namespace

v1::Config WithoutSecrets(v1::Config config) {
  Hide(config);
  return config;
}

}  // namespace tensorcast::config
