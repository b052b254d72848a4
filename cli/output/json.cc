#include "cli/output/json.h"

#include <google/protobuf/util/json_util.h>

namespace tensorcast::cli {

std::string ToJson(const google::protobuf::Message& message, bool every_field) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = every_field;
  std::string json;
  (void)google::protobuf::util::MessageToJsonString(message, &json, options);
  if (json.empty() || json.back() != '\n') json += '\n';
  return json;
}

}  // namespace tensorcast::cli
