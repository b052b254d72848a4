// How a room of a server takes its options from the configuration: by the full name of each key, without
// seeing a message or YAML. A room's options struct reads its keys in `FromConfig(ConfigReader&)` and says in
// `Validate(Findings&)` what cannot work together or on this host. A start and `config check` call both.
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

// What is wrong with a configuration: a line for each thing, which begins with its key. A line that is there
// already is not added again: rooms share keys.
class Findings {
 public:
  void Add(std::string_view key, std::string_view what);
  void Add(std::string_view key, const absl::Status& status);  // OK adds nothing
  // INVALID_ARGUMENT with all lines; OK without one.
  absl::Status ToStatus() const;

 private:
  std::vector<std::string> lines_;
};

class ConfigReader {
 public:
  virtual ~ConfigReader() = default;

  // Each sets `value` to that of the key, "daemon.host_pool". A number that the configuration writes as an
  // empty text keeps its value, the default. REQUIRES: proto/config.proto declares the key with this type.
  virtual void Read(std::string_view key, bool& value) = 0;
  virtual void Read(std::string_view key, int& value) = 0;
  virtual void Read(std::string_view key, uint64_t& value) = 0;  // a size or a rate, in bytes
  virtual void Read(std::string_view key, absl::Duration& value) = 0;
  virtual void Read(std::string_view key, std::string& value) = 0;
  // Of a list all texts; of another key its one text, and none where that is empty.
  virtual void Read(std::string_view key, std::vector<std::string>& value) = 0;

  // Of values that have the form of their key, and yet cannot be read.
  Findings& findings() { return findings_; }

 private:
  Findings findings_;
};

}  // namespace tensorcast
