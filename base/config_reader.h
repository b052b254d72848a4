// Reads options of a server's configuration by the full name of each key. Callers depend neither on protobuf
// nor on YAML. An options struct reads its keys in `FromConfig(ConfigReader&)`. Its `Validate(Findings&)`
// reports options that cannot work together or on this host. The start of a server and `config check` call
// both functions. Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tensorcast {

// The faults of a configuration, one line each; a line begins with the key. Equal lines are added once.
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

  // Each Read sets `value` to the value of a key such as "daemon.host_pool". If the text of a size, rate or
  // duration is empty, `value` does not change. REQUIRES: proto/config.proto declares the key with this type.
  virtual void Read(std::string_view key, bool& value) = 0;
  virtual void Read(std::string_view key, int& value) = 0;
  virtual void Read(std::string_view key, uint64_t& value) = 0;  // a size or a rate, in bytes
  virtual void Read(std::string_view key, absl::Duration& value) = 0;
  virtual void Read(std::string_view key, std::string& value) = 0;
  // The texts of a list. A key that is not a list gives its one text, or nothing if that text is empty.
  virtual void Read(std::string_view key, std::vector<std::string>& value) = 0;

  // The faults found while reading, such as a duration that cannot be parsed. Read and FromConfig add them.
  Findings& findings() { return findings_; }

 private:
  Findings findings_;
};

}  // namespace tensorcast
