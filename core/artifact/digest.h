// Chunk digests. XXH3-128 (https://github.com/Cyan4973/xxHash), in canonical (big-endian) byte order, guards
// against accidents: an adversary can make other bytes with the same value. BLAKE3
// (https://github.com/BLAKE3-team/BLAKE3-specs), its first 32 bytes, guards against adversaries, and costs
// several times as much. This header also has the copy that a digest is fused with.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace tensorcast {

// XXH3-128.
struct Digest {
  std::array<uint8_t, 16> bytes{};

  std::string ToHex() const;
  friend bool operator==(const Digest&, const Digest&) = default;
};

struct Blake3Digest {
  std::array<uint8_t, 32> bytes{};

  std::string ToHex() const;
  friend bool operator==(const Blake3Digest&, const Blake3Digest&) = default;
};

// What was computed of one chunk.
struct ChunkDigests {
  Digest xxh3;
  std::optional<Blake3Digest> blake3;
  friend bool operator==(const ChunkDigests&, const ChunkDigests&) = default;
};

Digest ComputeDigest(std::span<const std::byte> bytes);
Blake3Digest ComputeBlake3(std::span<const std::byte> bytes);
// The BLAKE3 of several pieces, one after another.
Blake3Digest Blake3OfPieces(std::span<const std::span<std::byte>> pieces);

// XXH3 over pieces, and BLAKE3 where it is asked for. Thread-compatible.
class DigestBuilder {
 public:
  explicit DigestBuilder(bool with_blake3 = false);
  ~DigestBuilder();
  DigestBuilder(DigestBuilder&&) noexcept;
  DigestBuilder& operator=(DigestBuilder&&) noexcept;

  void Update(std::span<const std::byte> bytes);
  // Copies `source` to `destination` and digests it in one pass, in steps that stay in the first cache
  // levels.
  void UpdateAndCopy(std::byte* destination, std::span<const std::byte> source);
  Digest Finish() const;
  ChunkDigests FinishChunk() const;
  void Reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A copy for bytes that this process does not read again soon, tensor bytes for a pool: copies `source`
// to `destination`, which must not overlap, past the caches where the processor can (non-temporal stores: the
// destination's old lines are not read first). Visible to other threads by ordinary synchronisation when it
// returns. Thread-safe.
void StreamingCopy(std::byte* destination, std::span<const std::byte> source);

}  // namespace tensorcast
