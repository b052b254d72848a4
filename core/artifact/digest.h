// Chunk digests: XXH3-128 (https://github.com/Cyan4973/xxHash), in canonical (big-endian) byte order.
// They guard against accidents, not adversaries.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tensorcast {

struct Digest {
  std::array<uint8_t, 16> bytes{};

  std::string ToHex() const;
  friend bool operator==(const Digest&, const Digest&) = default;
};

Digest ComputeDigest(std::span<const std::byte> bytes);

// The same over pieces. Thread-compatible.
class DigestBuilder {
 public:
  DigestBuilder();
  ~DigestBuilder();
  DigestBuilder(DigestBuilder&&) noexcept;
  DigestBuilder& operator=(DigestBuilder&&) noexcept;

  void Update(std::span<const std::byte> bytes);
  // Copies `source` to `destination` and digests it in one pass, in steps that stay in the first cache
  // levels.
  void UpdateAndCopy(std::byte* destination, std::span<const std::byte> source);
  Digest Finish() const;
  void Reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tensorcast
