// The settings that AWS's own tools read: variables of the environment, and the profile of the shared files
// (~/.aws/credentials and ~/.aws/config, "Configuration and credential file settings in the AWS CLI"). Values
// and functions without state; thread-safe.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tensorcast::objects {

// The value of a variable; empty: it is not set. Tests give their own.
using Environment = std::function<std::string(std::string_view name)>;
Environment ProcessEnvironment();

// Of the profile that AWS_PROFILE names, else "default": "aws_access_key_id" and so on. Where both files have
// a setting, credentials counts.
struct Profile {
  std::string name;
  std::map<std::string, std::string, std::less<>> settings;

  std::string Get(std::string_view setting) const;
};

// NOT_FOUND when AWS_PROFILE names a profile that neither file has. Files that are missing are empty.
absl::StatusOr<Profile> ReadProfile(const Environment& environment);

// AWS_REGION, AWS_DEFAULT_REGION, the profile's, else us-east-1.
std::string ConfiguredRegion(const Environment& environment);

// The whole of a small file, without the white space at its end. NOT_FOUND, PERMISSION_DENIED and others.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);

}  // namespace tensorcast::objects
