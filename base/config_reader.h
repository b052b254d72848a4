// How a room of a server reads its options from the configuration: by the full name of each key, without
// knowing a protobuf message or YAML. A room's options struct reads its keys in `FromConfig(ConfigReader&)`;
// its `Validate(Findings&)` reports options that cannot work together or on this host. The start of a server
// and `config check` call both.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tensorcast {

// The faults of a configuration: one line each, which begins with the key. A line is added only once, since
// rooms share keys.
class Findings {
 public:
  void Add(std::string_view key, std::string_view what);
  void Add(std::string_view key, const absl::Status& status);  // OK adds nothing
  // INVALID_ARGUMENT with all lines; OK when there are none.
  absl::Status ToStatus() const;

 private:
  std::vector<std::string> lines_;
};

class ConfigReader {
 public:
  virtual ~ConfigReader() = default;

  // Each sets `value` to the value of the key, such as "daemon.host_pool". If the configuration has an empty
  // text for a number, `value` keeps the default that it has. REQUIRES: proto/config.proto declares the key
  // with this type.
  virtual void Read(std::string_view key, bool& value) = 0;
  virtual void Read(std::string_view key, int& value) = 0;
  virtual void Read(std::string_view key, uint64_t& value) = 0;  // a size or a rate, in bytes
  virtual void Read(std::string_view key, absl::Duration& value) = 0;
  virtual void Read(std::string_view key, std::string& value) = 0;
  // The texts of a list. For a key that is not a list: its one text, or no text if it is empty.
  virtual void Read(std::string_view key, std::vector<std::string>& value) = 0;

  // For values that have the form of their key but cannot be read.
  Findings& findings() { return findings_; }

 private:
  Findings findings_;
};

}  // namespace tensorcast
