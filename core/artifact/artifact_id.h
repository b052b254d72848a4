// The id of an artifact: a text made of the SHA-256 of its manifest's canonical bytes (FORMAT.md).
//
// Pure functions; thread-safe. All functions accept any text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tensorcast {

// "tc2:" and 52 characters of lower-case base32 (RFC 4648, no padding) over SHA-256 of the canonical bytes.
std::string ArtifactId(std::string_view canonical_manifest);
bool IsArtifactId(std::string_view text);
// Whether `text` begins like an artifact id. A key must not begin like this, so that no text is both a key
// and an artifact id.
bool BeginsAsArtifactId(std::string_view text);

inline constexpr size_t kSha256Bytes = 32;
// The SHA-256 of `bytes`, which are a manifest's bytes or a part of them.
std::array<uint8_t, kSha256Bytes> Sha256Of(std::string_view bytes);

}  // namespace tensorcast
