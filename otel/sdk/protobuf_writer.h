// Protobuf's wire format, as far as OTLP's spans need it: fields appended to bytes, in any order, as the
// format allows. Lengths of what is nested are known before it is written, so nothing is written twice.
// `String` is a std::string with any allocator. Stateless. Specification:
// https://protobuf.dev/programming-guides/encoding/.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

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

// Of field numbers below 16, which take a byte.
constexpr char Tag(uint32_t field, Type type) { return static_cast<char>(field << 3 | type); }

// Of a length-delimited field with its tag and length.
constexpr size_t FieldSize(size_t bytes) { return 1 + VarintSize(bytes) + bytes; }

// The head of a nested message that is `bytes` long.
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

}  // namespace tensorcast::otel::sdk::protobuf
