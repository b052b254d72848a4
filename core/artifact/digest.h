// The two digests of a chunk, and copies that are fused with digesting or bypass the caches.
// - XXH3-128 (https://github.com/Cyan4973/xxHash), in canonical (big-endian) byte order, protects against
//   accidents. An adversary can make other bytes with the same XXH3-128.
// - The first 32 bytes of BLAKE3 (https://github.com/BLAKE3-team/BLAKE3-specs) protect against adversaries.
//   BLAKE3 needs several times as much processor time as XXH3-128.
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

// The computed digests of one chunk.
struct ChunkDigests {
  Digest xxh3;
  std::optional<Blake3Digest> blake3;
  friend bool operator==(const ChunkDigests&, const ChunkDigests&) = default;
};

Digest ComputeDigest(std::span<const std::byte> bytes);
Blake3Digest ComputeBlake3(std::span<const std::byte> bytes);
// The BLAKE3 of the concatenated pieces.
Blake3Digest Blake3OfPieces(std::span<const std::span<std::byte>> pieces);

// Computes XXH3-128, and BLAKE3 if `with_blake3`, of bytes that come in pieces. Thread-compatible.
class DigestBuilder {
 public:
  explicit DigestBuilder(bool with_blake3 = false);
  ~DigestBuilder();
  DigestBuilder(DigestBuilder&&) noexcept;
  DigestBuilder& operator=(DigestBuilder&&) noexcept;

  void Update(std::span<const std::byte> bytes);
  // Copies `source` to `destination` as StreamingCopy does, and digests the bytes in the same pass. `source`
  // must not change during the call.
  void UpdateAndCopy(std::byte* destination, std::span<const std::byte> source);
  // The digests of all bytes since the construction or the last Reset.
  Digest Finish() const;
  ChunkDigests FinishChunk() const;
  void Reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Copies `source` to `destination`; the two ranges must not overlap. Use it for bytes that this process does
// not read again soon, such as tensor bytes for a pool. On x86-64 the copy uses non-temporal stores, which
// bypass the caches. After the return, ordinary synchronisation makes the bytes visible to other threads.
// Thread-safe.
void StreamingCopy(std::byte* destination, std::span<const std::byte> source);

// One step of a copy that changes the bytes. Reads `next` into `buffer`, which stays in the cache. Meanwhile
// writes `made`, the result of the previous step, to `destination` as StreamingCopy does. The four ranges
// must not overlap. Other threads can see the bytes at `destination` only after a later call of
// StreamingCopy on the same thread.
void ReadAndStream(std::byte* buffer, std::span<const std::byte> next, std::byte* destination,
                   std::span<const std::byte> made);

}  // namespace tensorcast
