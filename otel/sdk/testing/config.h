// The configuration of telemetry in tests: "enabled: true sampling_ratio: 0.5", in protobuf's text format.
// Keys that the text does not name are unset. Header only.
#pragma once

#include <google/protobuf/text_format.h>

#include <string>

#include "absl/log/check.h"
#include "proto/config.pb.h"

namespace tensorcast::otel::testing {

inline v1::OtelConfig OtelConfig(const std::string& text) {
  v1::OtelConfig config;
  CHECK(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return config;
}

}  // namespace tensorcast::otel::testing
