// The configuration: a YAML file overrides the defaults, and --set overrides both. The keys are the fields of
// proto/config.proto. A new key needs no code here.
//
// Errors are INVALID_ARGUMENT, one line for each fault: "file:line: key: what, did you mean ...?". Stateless;
// thread-safe.
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

// The configuration with all defaults.
v1::Config Defaults();

// Applies the defaults, then the file, then the sets, and checks the result. NOT_FOUND when the file does not
// exist.
absl::StatusOr<v1::Config> Load(const LoadOptions& options);

// Like Load, for a YAML text instead of a file; errors use `name` as the file name.
absl::StatusOr<v1::Config> Parse(std::string_view yaml, std::string_view name,
                                 const std::vector<std::string>& sets);

// The whole configuration, or one section, as YAML: every key with its help above it. Load can read the whole
// configuration back.
std::string ToYaml(const google::protobuf::Message& section);

}  // namespace tensorcast::config
