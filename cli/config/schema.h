// Reads the default, the limits and the help of each key from proto/config.proto (proto/config_key.proto).
// Writes checked values into a configuration. A new key needs no code here. Private to this folder.
//
// Stateless; thread-safe.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "proto/config.pb.h"
#include "proto/config_key.pb.h"

namespace tensorcast::config {

const v1::ConfigKey& KeyOf(const google::protobuf::FieldDescriptor& field);

// INVALID_ARGUMENT, with the expected form, if `text` is not a valid value of the key or, for a list, of an
// item. An empty text is valid if the default is empty.
absl::Status CheckText(const google::protobuf::FieldDescriptor& field, std::string_view text);

// The help of a key with the form of its value: "... the daemon's buffers [a size, such as 64GiB]".
std::string HelpOf(const google::protobuf::FieldDescriptor& field);

// The defaults of all keys, with $STATE replaced by `state_folder`.
v1::Config DefaultsWith(std::string_view state_folder);

// The error for an unknown key, with the most similar known key.
absl::Status UnknownKey(const google::protobuf::Descriptor& section, std::string_view section_path,
                        std::string_view key);

// Sets a scalar, or appends to a list. INVALID_ARGUMENT for a text that is not a valid value of the field.
absl::Status SetScalar(google::protobuf::Message& section, const google::protobuf::FieldDescriptor& field,
                       const std::string& text);

// Applies one --set. `path`: for example "daemon.host_pool". The text of a list is a YAML list, or items
// separated by commas.
absl::Status SetByPath(google::protobuf::Message& config, std::string_view path, const std::string& text);

}  // namespace tensorcast::config
