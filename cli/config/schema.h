// What proto/config.proto declares of a key beyond its type (proto/config_key.proto): its default, its limits
// and its help; and writing values that fit into a configuration, by reflection. Nothing here knows a key by
// name. Private to this folder.
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

// INVALID_ARGUMENT, with what is expected, when `text` is not a good value of the key, or of an item of its
// list. An empty text is good where the default is empty: there it stands for what the key's help says.
absl::Status CheckText(const google::protobuf::FieldDescriptor& field, std::string_view text);

// What people are told of a key, with what it takes: "... the daemon's buffers [a size, such as 64GiB]".
std::string HelpOf(const google::protobuf::FieldDescriptor& field);

// Every key's default, with `state_folder` for $STATE.
v1::Config DefaultsWith(std::string_view state_folder);

// "there is no key "x" in y; did you mean z?"
absl::Status UnknownKey(const google::protobuf::Descriptor& section, std::string_view section_path,
                        std::string_view key);

// Sets a scalar, or appends to a list. INVALID_ARGUMENT for text that is not a good value of the field.
absl::Status SetScalar(google::protobuf::Message& section, const google::protobuf::FieldDescriptor& field,
                       const std::string& text);

// What --set does: `path` is "daemon.host_pool"; the text of a list is a YAML list, or items between commas.
absl::Status SetByPath(google::protobuf::Message& config, std::string_view path, const std::string& text);

}  // namespace tensorcast::config
