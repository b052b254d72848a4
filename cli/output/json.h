// Results as JSON: the contract's messages through protobuf's own mapping, so that a field is never spelled
// twice.
#pragma once

#include <string>

namespace google::protobuf {
class Message;
}

namespace tensorcast::cli {

// One line break at the end; field names as in the .proto files, unset fields left out unless `every_field`.
std::string ToJson(const google::protobuf::Message& message, bool every_field = false);

}  // namespace tensorcast::cli
