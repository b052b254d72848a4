// Reads the settings of AWS's own tools: environment variables, and the profile in the shared files
// (~/.aws/credentials and ~/.aws/config, "Configuration and credential file settings in the AWS CLI"). Values
// and functions without state; thread-safe.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tensorcast::objects {

// Returns the value of an environment variable; empty if it is not set. Tests pass their own function.
using Environment = std::function<std::string(std::string_view name)>;
Environment ProcessEnvironment();

// The settings ("aws_access_key_id" and so on) of the profile that AWS_PROFILE names, else of "default",
// with names in lower case. If both files have a setting, the value in the credentials file counts.
struct Profile {
  std::string name;
  std::map<std::string, std::string, std::less<>> settings;

  std::string Get(std::string_view setting) const;
};

// NOT_FOUND if AWS_PROFILE names a profile that neither file has. A file that cannot be read counts as empty.
absl::StatusOr<Profile> ReadProfile(const Environment& environment);

// AWS_REGION, else AWS_DEFAULT_REGION, else the profile's region, else us-east-1.
std::string ConfiguredRegion(const Environment& environment);

// The content of a small file, without trailing white space. Errors: NOT_FOUND, PERMISSION_DENIED and others.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);

}  // namespace tensorcast::objects
