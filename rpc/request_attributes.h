// The ids that a request names, as attributes of the span of its call: which artifact, key, replica, node,
// transport, location and device. Found by the fields' names, which are the same in all our messages, so
// that no handler has to say them.
#pragma once

#include "otel/api/span.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace tensorcast::rpc {

// Fields that are empty or unset are left out. Thread-safe; what there is to look for is found once a type
// of message.
void SetRequestAttributes(const google::protobuf::Message& request, otel::Span& span);

}  // namespace tensorcast::rpc
