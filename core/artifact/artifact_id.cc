#include <openssl/evp.h>

#include <array>
#include <cstdint>

#include "absl/log/check.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "core/artifact/manifest.h"

namespace tensorcast {
namespace {

constexpr std::string_view kPrefix = "tc1:";
constexpr std::string_view kBase32Alphabet = "abcdefghijklmnopqrstuvwxyz234567";  // RFC 4648, lower case
constexpr size_t kSha256Bytes = 32;
constexpr size_t kBase32Characters = (kSha256Bytes * 8 + 4) / 5;

std::array<uint8_t, kSha256Bytes> Sha256(std::string_view bytes) {
  std::array<uint8_t, kSha256Bytes> hash;
  unsigned int hash_bytes = 0;
  CHECK_EQ(EVP_Digest(bytes.data(), bytes.size(), hash.data(), &hash_bytes, EVP_sha256(), nullptr), 1)
      << "OpenSSL offers no SHA-256";
  CHECK_EQ(hash_bytes, kSha256Bytes);
  return hash;
}

void AppendBase32(std::span<const uint8_t> bytes, std::string& out) {
  uint32_t pending = 0;
  int pending_bits = 0;
  for (const uint8_t byte : bytes) {
    pending = pending << 8 | byte;
    for (pending_bits += 8; pending_bits >= 5;) {
      pending_bits -= 5;
      out += kBase32Alphabet[pending >> pending_bits & 31];
    }
  }
  if (pending_bits > 0) {
    out += kBase32Alphabet[pending << (5 - pending_bits) & 31];
  }
}

}  // namespace

std::string ArtifactId(std::string_view canonical_manifest) {
  std::string id(kPrefix);
  id.reserve(kPrefix.size() + kBase32Characters);
  AppendBase32(Sha256(canonical_manifest), id);
  return id;
}

bool IsArtifactId(std::string_view text) {
  if (!absl::ConsumePrefix(&text, kPrefix) || text.size() != kBase32Characters ||
      text.find_first_not_of(kBase32Alphabet) != std::string_view::npos) {
    return false;
  }
  // The last character holds one bit of the hash; the other four are zero.
  return text.back() == 'a' || text.back() == 'q';
}

}  // namespace tensorcast
