// Converts attributes of otel/api for OpenTelemetry. Includes OpenTelemetry. Thread-safe.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/text.h"
#include "opentelemetry/common/attribute_value.h"
#include "opentelemetry/common/key_value_iterable.h"
#include "opentelemetry/nostd/string_view.h"
#include "otel/api/attributes.h"

namespace tensorcast::otel::sdk {

// The instrumentation scope of all spans, metrics and log records of TensorCast.
inline constexpr const char* kScopeName = "tensorcast";
inline constexpr const char* kScopeVersion = TENSORCAST_VERSION;
// The version of OpenTelemetry's semantic conventions that defines the attribute names in use.
inline constexpr const char* kSchemaUrl = "https://opentelemetry.io/schemas/1.30.0";

inline opentelemetry::nostd::string_view ToNostd(std::string_view text) { return {text.data(), text.size()}; }

// Calls `take` with the value. Strings are cut to `max_bytes` and made valid UTF-8, which OTLP requires.
template <class Take>
auto WithValue(const AttributeValue& value, size_t max_bytes, const Take& take) {
  using Value = opentelemetry::common::AttributeValue;
  switch (value.type()) {
    case AttributeValue::Type::kBool:
      return take(Value(value.as_bool()));
    case AttributeValue::Type::kInt:
      return take(Value(value.as_int()));
    case AttributeValue::Type::kDouble:
      return take(Value(value.as_double()));
    case AttributeValue::Type::kString:
      break;
  }
  std::string storage;
  return take(Value(ToNostd(ValidUtf8(CutUtf8(value.as_string(), max_bytes), storage))));
}

class AttributeView final : public opentelemetry::common::KeyValueIterable {
 public:
  AttributeView(std::span<const Attribute> attributes, size_t max_bytes)
      : attributes_(attributes), max_bytes_(max_bytes) {}

  bool ForEachKeyValue(opentelemetry::nostd::function_ref<bool(opentelemetry::nostd::string_view,
                                                               opentelemetry::common::AttributeValue)>
                           callback) const noexcept override {
    for (const Attribute& attribute : attributes_) {
      const auto key = ToNostd(attribute.key.name());
      if (!WithValue(attribute.value, max_bytes_, [&](const auto& value) { return callback(key, value); })) {
        return false;
      }
    }
    return true;
  }
  size_t size() const noexcept override { return attributes_.size(); }

 private:
  std::span<const Attribute> attributes_;
  size_t max_bytes_;
};

}  // namespace tensorcast::otel::sdk
