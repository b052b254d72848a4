// Chunk digests. XXH3-128 (https://github.com/Cyan4973/xxHash), in canonical (big-endian) byte order, guards
// against accidents: an adversary can make other bytes with the same value. BLAKE3
// (https://github.com/BLAKE3-team/BLAKE3-specs), its first 32 bytes, guards against adversaries, and costs
// several times as much. This header also has copies that are fused with digesting or bypass the caches.
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

// The digests that were computed of one chunk.
struct ChunkDigests {
  Digest xxh3;
  std::optional<Blake3Digest> blake3;
  friend bool operator==(const ChunkDigests&, const ChunkDigests&) = default;
};

Digest ComputeDigest(std::span<const std::byte> bytes);
Blake3Digest ComputeBlake3(std::span<const std::byte> bytes);
// The BLAKE3 of several pieces, one after another.
Blake3Digest Blake3OfPieces(std::span<const std::span<std::byte>> pieces);

// Computes XXH3, and BLAKE3 if `with_blake3`, over pieces. Thread-compatible.
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

// Copies `source` to `destination`; they must not overlap. For bytes that this process does not read again
// soon, such as tensor bytes for a pool: where the processor can, the copy bypasses the caches by
// non-temporal stores, which do not read the destination first. When it returns, ordinary synchronisation
// makes the bytes visible to other threads. Thread-safe.
void StreamingCopy(std::byte* destination, std::span<const std::byte> source);

// One step of a copy that changes bytes on its way: reads `next` into `buffer`, which stays in the cache, and
// meanwhile writes the step before, `made`, to `destination` as StreamingCopy does. The memory reads and
// writes at the same time so, as it does in a plain copy. None of the four overlap. The bytes at `destination`
// become visible to other threads only by a StreamingCopy that the same thread makes later.
void ReadAndStream(std::byte* buffer, std::span<const std::byte> next, std::byte* destination,
                   std::span<const std::byte> made);

}  // namespace tensorcast
