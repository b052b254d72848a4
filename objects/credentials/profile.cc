#include "objects/credentials/profile.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/posix/unique_fd.h"
#include "base/status.h"

namespace tensorcast::objects {
namespace {

// Adds the settings of the section to those that are there already. false: the text has no such section.
bool AddSection(std::string_view text, std::string_view section, Profile& profile) {
  bool found = false, inside = false;
  for (std::string_view line : absl::StrSplit(text, '\n')) {
    const bool nested = !line.empty() && absl::ascii_isspace(line[0]);  // settings of one service
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#' || line[0] == ';') continue;
    if (absl::ConsumePrefix(&line, "[")) {
      // The credentials file names a section "[team]", the config file "[profile team]"; ReadProfile gives
      // the name that fits.
      inside = absl::StripAsciiWhitespace(line.substr(0, line.find(']'))) == section;
      found |= inside;
    } else if (const size_t equals = line.find('='); inside && !nested && equals != line.npos) {
      // The first value of a setting stays, so ReadProfile reads the credentials file before the config file.
      profile.settings.emplace(absl::AsciiStrToLower(absl::StripAsciiWhitespace(line.substr(0, equals))),
                               absl::StripAsciiWhitespace(line.substr(equals + 1)));
    }
  }
  return found;
}

std::string SharedFile(const Environment& environment, std::string_view variable, std::string_view name) {
  const std::string path = environment(variable);
  return path.empty() ? absl::StrCat(environment("HOME"), "/.aws/", name) : path;
}

}  // namespace

Environment ProcessEnvironment() {
  return [](std::string_view name) {
    const char* const value = std::getenv(std::string(name).c_str());
    return std::string(value == nullptr ? "" : value);
  };
}

std::string Profile::Get(std::string_view setting) const {
  const auto found = settings.find(setting);
  return found == settings.end() ? "" : found->second;
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  // Not with a stream: its iterators throw where a read fails, as that of a folder does.
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return ErrnoStatus(errno, "read", path);
  std::string text;
  std::array<char, 4096> piece;
  while (true) {
    const ssize_t size = read(file.get(), piece.data(), piece.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return ErrnoStatus(errno, "read", path);
    if (size == 0) break;
    text.append(piece.data(), static_cast<size_t>(size));
  }
  absl::StripTrailingAsciiWhitespace(&text);
  return text;
}

absl::StatusOr<Profile> ReadProfile(const Environment& environment) {
  const std::string asked = environment("AWS_PROFILE");
  Profile profile{.name = asked.empty() ? "default" : asked};
  const std::string credentials = SharedFile(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials");
  const std::string config = SharedFile(environment, "AWS_CONFIG_FILE", "config");
  // A file that cannot be read counts as empty. A profile that was named and is in neither file is an error.
  bool found = AddSection(ReadSmallFile(credentials).value_or(""), profile.name, profile);
  const std::string config_text = ReadSmallFile(config).value_or("");
  found |= AddSection(config_text, absl::StrCat("profile ", profile.name), profile);
  if (profile.name == "default") found |= AddSection(config_text, "default", profile);
  if (found || asked.empty()) return profile;
  return absl::NotFoundError(
      absl::StrCat("read profile ", asked, ": neither ", credentials, " nor ", config,
                   " has this profile, or they cannot be read; add the profile, or set AWS_PROFILE"));
}

std::string ConfiguredRegion(const Environment& environment) {
  for (const char* const variable : {"AWS_REGION", "AWS_DEFAULT_REGION"}) {
    if (std::string region = environment(variable); !region.empty()) return region;
  }
  const absl::StatusOr<Profile> profile = ReadProfile(environment);
  std::string region = profile.ok() ? profile->Get("region") : "";
  return region.empty() ? "us-east-1" : region;
}

}  // namespace tensorcast::objects
