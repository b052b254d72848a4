// What proto/config.proto declares of a key beyond its type (proto/config_key.proto): its default, its limits
// and its help. Nothing here knows a key by name. Private to this folder.
//
// Stateless; thread-safe.
#pragma once

#include <google/protobuf/descriptor.h>

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

}  // namespace tensorcast::config
