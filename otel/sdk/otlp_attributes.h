// The SDK's attribute values and ids in OTLP's bytes, for what encodes itself (span_encoder, log_encoder).
// Includes OpenTelemetry.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "opentelemetry/common/attribute_value.h"
#include "opentelemetry/common/key_value_iterable.h"
#include "opentelemetry/nostd/variant.h"
#include "opentelemetry/sdk/common/attribute_utils.h"
#include "otel/sdk/protobuf_writer.h"

namespace tensorcast::otel::sdk::protobuf {

namespace nostd = opentelemetry::nostd;

// Field numbers of opentelemetry-proto 1.x.
namespace key_value_field {
enum : uint32_t { kKey = 1, kValue };
}
namespace any_value_field {
enum : uint32_t { kString = 1, kBool, kInt, kDouble };
}

inline std::string_view View(nostd::string_view text) { return {text.data(), text.size()}; }

// A value that OTLP has no scalar for is left out; ours are all scalars.
struct AnyValue {
  uint32_t field = 0;
  uint64_t number = 0;  // of a bool, an integer, or a double's bits
  std::string_view text;

  bool known() const { return field != 0; }
  size_t Size() const {
    switch (field) {
      case any_value_field::kString:
        return FieldSize(text.size());
      case any_value_field::kDouble:
        return 9;
      default:
        return 1 + VarintSize(number);
    }
  }
  template <class String>
  void AppendTo(String& out) const {
    if (field == any_value_field::kString) {
      AppendBytes(out, field, text);
    } else if (field == any_value_field::kDouble) {
      AppendFixed64(out, field, number);
    } else {
      AppendUint(out, field, number);
    }
  }
};

// Of both of the SDK's variants, that of views and that of owned values.
struct ToAnyValue {
  AnyValue operator()(bool value) const { return {any_value_field::kBool, value ? 1u : 0u, {}}; }
  AnyValue operator()(int32_t value) const { return (*this)(static_cast<int64_t>(value)); }
  AnyValue operator()(uint32_t value) const { return (*this)(static_cast<int64_t>(value)); }
  AnyValue operator()(int64_t value) const {
    return {any_value_field::kInt, static_cast<uint64_t>(value), {}};
  }
  AnyValue operator()(uint64_t value) const { return (*this)(static_cast<int64_t>(value)); }
  AnyValue operator()(double value) const {
    return {any_value_field::kDouble, std::bit_cast<uint64_t>(value), {}};
  }
  AnyValue operator()(const char* value) const { return {any_value_field::kString, 0, value}; }
  AnyValue operator()(nostd::string_view value) const { return {any_value_field::kString, 0, View(value)}; }
  AnyValue operator()(const std::string& value) const { return {any_value_field::kString, 0, value}; }
  template <class Other>
  AnyValue operator()(const Other&) const {
    return {};
  }
};

inline size_t KeyValueSize(std::string_view key, const AnyValue& value) {
  return FieldSize(key.size()) + FieldSize(value.Size());
}

template <class String>
void AppendKeyValue(String& out, uint32_t field, std::string_view key, const AnyValue& value) {
  if (!value.known()) return;
  AppendHead(out, field, KeyValueSize(key, value));
  AppendBytes(out, key_value_field::kKey, key);
  AppendHead(out, key_value_field::kValue, value.Size());
  value.AppendTo(out);
}

template <class String>
void AppendAttributes(String& out, uint32_t field,
                      const opentelemetry::common::KeyValueIterable& attributes) {
  attributes.ForEachKeyValue(
      [&](nostd::string_view key, const opentelemetry::common::AttributeValue& value) noexcept {
        AppendKeyValue(out, field, View(key), nostd::visit(ToAnyValue(), value));
        return true;
      });
}

template <class String, class Id>
void AppendId(String& out, uint32_t field, const Id& id) {
  const auto bytes = id.Id();
  AppendBytes(out, field, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace tensorcast::otel::sdk::protobuf
