// Reads the options of servers from a configuration message, by reflection: a new key needs no code here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/config_reader.h"
#include "proto/config.pb.h"

namespace tensorcast::config {

class MessageReader final : public ConfigReader {
 public:
  // `config` must outlive the reader.
  explicit MessageReader(const v1::Config& config) : config_(config) {}

  void Read(std::string_view key, bool& value) override;
  void Read(std::string_view key, int& value) override;
  void Read(std::string_view key, uint64_t& value) override;
  void Read(std::string_view key, absl::Duration& value) override;
  void Read(std::string_view key, std::string& value) override;
  void Read(std::string_view key, std::vector<std::string>& value) override;

 private:
  const v1::Config& config_;
};

}  // namespace tensorcast::config
