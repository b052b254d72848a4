// Writes values into a configuration message by reflection. Private to this folder.
#pragma once

#include <google/protobuf/message.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace tensorcast::config {

// "there is no key "x" in y; did you mean z?"
absl::Status UnknownKey(const google::protobuf::Descriptor& section, std::string_view section_path,
                        std::string_view key);

// Sets a scalar, or appends to a list. INVALID_ARGUMENT for text that is not a good value of the field.
absl::Status SetScalar(google::protobuf::Message& section, const google::protobuf::FieldDescriptor& field,
                       const std::string& text);

// What --set does: `path` is "daemon.host_pool"; the text of a list is a YAML list, or items between commas.
absl::Status SetByPath(google::protobuf::Message& config, std::string_view path, const std::string& text);

}  // namespace tensorcast::config
