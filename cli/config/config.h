// Configuration: one YAML file over the defaults, single keys over both. Keys are the fields of
// proto/config.proto, which declares all that is known of them; they are found by reflection, so a new one
// needs nothing here.
//
// Errors are INVALID_ARGUMENT, one line for each thing that is wrong: "file:line: key: what, did you mean
// ...?". Stateless; thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"

namespace tensorcast::config {

struct LoadOptions {
  std::string path;               // YAML; empty: defaults only
  std::vector<std::string> sets;  // "daemon.host_pool=64GiB"; lists as YAML: "daemon.lanes=[ucx, loopback]"
};

// What is in force when nothing is configured.
v1::Config Defaults();

// Defaults, then the file, then the sets, checked. NOT_FOUND when there is no such file.
absl::StatusOr<v1::Config> Load(const LoadOptions& options);

// As Load, of a YAML text instead of a file; `name` stands for the file in errors.
absl::StatusOr<v1::Config> Parse(std::string_view yaml, std::string_view name,
                                 const std::vector<std::string>& sets);

// The whole configuration, or one section of it, as YAML: every key with its help above it. Of the whole,
// Load reads it back.
std::string ToYaml(const google::protobuf::Message& section);

}  // namespace tensorcast::config
