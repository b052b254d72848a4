// Writes and reads records as bytes; one declaration serves both directions. A record's `Fields` function
// lists its fields in order. A FieldWriter writes them (byte_codec.h), a FieldReader reads them.
//
//   struct Ring { std::string token; uint32_t slots = 0; };
//   void Fields(auto& io, Ring& ring) { io(ring.token, ring.slots); }
//
// A field is one of these:
// - an unsigned integer;
// - a string: its size as a `Length`, then its bytes;
// - a vector: its size as a u32, then its elements, each of which takes at least one byte;
// - a record that has a Fields function, or an empty record, which takes no bytes.
//
// `Fields` is in the namespace of its record. If kReads of `io` is false, `Fields` must not change the
// record. Thread-compatible.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/byte_codec.h"

namespace tensorcast {

template <std::unsigned_integral Length>
class FieldWriter {
 public:
  static constexpr bool kReads = false;

  template <typename... T>
  void operator()(const T&... fields) {
    (Put(fields), ...);
  }
  // Writes the index of the alternative, counted from kFirst, as a u8, then the alternative's fields.
  template <uint8_t kFirst, typename... T>
  void OneOf(const std::variant<T...>& value, const char* /*unknown*/) {
    bytes_.Put(static_cast<uint8_t>(kFirst + value.index()));
    std::visit([this](const auto& alternative) { this->Put(alternative); }, value);
  }
  // Writes a fixed text, such as a magic number.
  void Literal(std::string_view text, const char* /*other*/) { bytes_.Put(text); }
  // Does nothing: only a reader checks.
  void Check(bool /*good*/, const char* /*what*/) {}

  ByteWriter& bytes() { return bytes_; }

 private:
  template <typename T>
  void Put(const T& field) {
    if constexpr (std::unsigned_integral<T>) {
      bytes_.Put(field);
    } else if constexpr (std::same_as<T, std::string>) {
      bytes_.PutString<Length>(field);
    } else if constexpr (!std::is_empty_v<T>) {
      Fields(*this, const_cast<T&>(field));  // Fields does not change it
    }
  }
  template <typename T>
  void Put(const std::vector<T>& fields) {
    bytes_.Put(static_cast<uint32_t>(fields.size()));
    for (const T& field : fields) Put(field);
  }

  ByteWriter bytes_;
};

// After bytes that cannot be read, the reader has failed (ByteReader), and all later fields are zero or
// empty. The texts `unknown`, `other` and `what` describe a failure and must be literals.
template <std::unsigned_integral Length>
class FieldReader {
 public:
  static constexpr bool kReads = true;

  // `bytes` must outlive the reader.
  explicit FieldReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename... T>
  void operator()(T&... fields) {
    (Get(fields), ...);
  }
  // Fails with `unknown` if no alternative has the index that was read.
  template <uint8_t kFirst, typename... T>
  void OneOf(std::variant<T...>& value, const char* unknown) {
    const size_t wanted = size_t{bytes_.Get<uint8_t>()} - kFirst;
    if (wanted >= sizeof...(T)) return bytes_.Fail(unknown);
    size_t index = 0;
    const auto take = [&]<typename Alternative>(std::type_identity<Alternative>) {
      if (index++ == wanted) Get(value.template emplace<Alternative>());
    };
    (take(std::type_identity<T>()), ...);
  }
  // Fails with `other` if the next bytes are not `text`.
  void Literal(std::string_view text, const char* other) {
    if (bytes_.GetBytes(text.size()) != text) bytes_.Fail(other);
  }
  // Fails with `what` if `good` is false. `good` is a condition on the fields read so far.
  void Check(bool good, const char* what) {
    if (!good) bytes_.Fail(what);
  }

  ByteReader& bytes() { return bytes_; }

 private:
  template <typename T>
  void Get(T& field) {
    if constexpr (std::unsigned_integral<T>) {
      field = bytes_.Get<T>();
    } else if constexpr (std::same_as<T, std::string>) {
      field = bytes_.GetString<Length>();
    } else if constexpr (!std::is_empty_v<T>) {
      Fields(*this, field);
    }
  }
  // Before it allocates, checks that the bytes left suffice for that many items, even if all are empty.
  template <typename T>
  void Get(std::vector<T>& fields) {
    FieldWriter<Length> shortest;
    shortest(T());
    const uint32_t count = bytes_.Get<uint32_t>();
    if (count > bytes_.remaining() / shortest.bytes().size()) bytes_.Fail("more items than the bytes hold");
    fields.resize(bytes_.ok() ? count : 0);
    for (T& field : fields) Get(field);
  }

  ByteReader bytes_;
};

}  // namespace tensorcast
