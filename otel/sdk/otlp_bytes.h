// Writes OTLP messages for otlp_encoders.h: the part of protobuf's wire format that OTLP needs, with the
// SDK's attribute values and ids. The length of a nested message is computed before it is written. `String`
// is a std::string with any allocator. Stateless. Includes OpenTelemetry. Specification:
// https://protobuf.dev/programming-guides/encoding/.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "opentelemetry/common/attribute_value.h"
#include "opentelemetry/common/key_value_iterable.h"
#include "opentelemetry/nostd/variant.h"
#include "opentelemetry/sdk/common/attribute_utils.h"

namespace tensorcast::otel::sdk::protobuf {

static_assert(std::endian::native == std::endian::little, "fixed fields are copied as they lie");

enum Type : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

constexpr size_t VarintSize(uint64_t value) {
  return (static_cast<size_t>(std::bit_width(value | 1)) + 6) / 7;
}

template <class String>
void AppendVarint(String& out, uint64_t value) {
  char bytes[10];
  size_t size = 0;
  for (; value >= 0x80; value >>= 7) bytes[size++] = static_cast<char>(value | 0x80);
  bytes[size++] = static_cast<char>(value);
  out.append(bytes, size);
}

// For field numbers below 16, which take one byte.
constexpr char Tag(uint32_t field, Type type) { return static_cast<char>(field << 3 | type); }

// The size of a length-delimited field with its tag and length.
constexpr size_t FieldSize(size_t bytes) { return 1 + VarintSize(bytes) + bytes; }

// Appends the head of a nested message of `bytes` bytes.
template <class String>
void AppendHead(String& out, uint32_t field, size_t bytes) {
  out += Tag(field, kBytes);
  AppendVarint(out, bytes);
}

template <class String>
void AppendBytes(String& out, uint32_t field, std::string_view bytes) {
  AppendHead(out, field, bytes.size());
  out.append(bytes);
}

template <class String>
void AppendUint(String& out, uint32_t field, uint64_t value) {
  out += Tag(field, kVarint);
  AppendVarint(out, value);
}

template <class String>
void AppendFixed32(String& out, uint32_t field, uint32_t value) {
  AppendVarint(out, field << 3 | kFixed32);
  char bytes[4];
  std::memcpy(bytes, &value, 4);
  out.append(bytes, 4);
}

template <class String, class T>
void AppendFixed64(String& out, uint32_t field, T value) {
  static_assert(sizeof(T) == 8);
  out += Tag(field, kFixed64);
  char bytes[8];
  std::memcpy(bytes, &value, 8);
  out.append(bytes, 8);
}

namespace nostd = opentelemetry::nostd;

// Field numbers of opentelemetry-proto 1.x.
namespace key_value_field {
enum : uint32_t { kKey = 1, kValue };
}
namespace any_value_field {
enum : uint32_t { kString = 1, kBool, kInt, kDouble };
}

inline std::string_view View(nostd::string_view text) { return {text.data(), text.size()}; }

// An attribute's value. Values that are not scalars are left out; TensorCast's attributes are all scalars.
struct AnyValue {
  uint32_t field = 0;
  uint64_t number = 0;  // a bool, an integer, or the bits of a double
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

// Converts the alternatives of the SDK's two variants: attribute values as views, and owned values.
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
