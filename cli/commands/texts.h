// Texts that several commands print in the same form.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "cli/commands/common_flags.h"
#include "proto/types.pb.h"

namespace tensorcast::cli {

// Prints the result of a command on stdout: the message with --json, otherwise the result of `text`. Returns
// OK.
absl::Status Show(const CommonFlags& common, const google::protobuf::Message& message,
                  absl::FunctionRef<std::string()> text);
// Prints a JSON value in one line with --json, otherwise `text`. Replaces bytes that are not UTF-8.
absl::Status Show(const CommonFlags& common, const nlohmann::json& json, std::string_view text);
std::string LocationText(const v1::Location& location);  // "gpu:0"; "?" for an unknown kind
// "cpu 1.03 GiB of 4.00 GiB (12.0 MiB in 2 parts), gpu:0 0 B of 80.0 GiB"
std::string PoolsText(const google::protobuf::RepeatedPtrField<v1::Pool>& pools);
// The node's unusual conditions: "draining", "unreachable", "gpu:1 unhealthy".
std::vector<std::string> ConditionsOf(const v1::Node& node);

}  // namespace tensorcast::cli
