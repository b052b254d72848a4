#include "core/artifact/artifact_id.h"

#include <openssl/evp.h>

#include <span>

#include "absl/log/check.h"

namespace tensorcast {
namespace {

constexpr std::string_view kPrefix = "tc2:";
constexpr std::string_view kBase32Alphabet = "abcdefghijklmnopqrstuvwxyz234567";  // RFC 4648, lower case
constexpr size_t kBase32Characters = (kSha256Bytes * 8 + 4) / 5;

void AppendBase32(std::span<const uint8_t> bytes, std::string& out) {
  // `pending` holds up to 12 bits that wait: at most 4 of the bytes before, and 8 of this one. Older bits
  // above them are ignored.
  uint32_t pending = 0;
  int pending_bits = 0;
  for (const uint8_t byte : bytes) {
    // Bits that were written move out at the top.
    pending = pending << 8 | byte;
    for (pending_bits += 8; pending_bits >= 5;) {
      pending_bits -= 5;
      out += kBase32Alphabet[pending >> pending_bits & 31];
    }
  }
  if (pending_bits > 0) out += kBase32Alphabet[pending << (5 - pending_bits) & 31];
}

}  // namespace

std::array<uint8_t, kSha256Bytes> Sha256Of(std::string_view bytes) {
  std::array<uint8_t, kSha256Bytes> hash;
  unsigned int hash_bytes = 0;
  CHECK_EQ(EVP_Digest(bytes.data(), bytes.size(), hash.data(), &hash_bytes, EVP_sha256(), nullptr), 1)
      << "OpenSSL offers no SHA-256";
  CHECK_EQ(hash_bytes, kSha256Bytes);
  return hash;
}

std::string ArtifactId(std::string_view canonical_manifest) {
  std::string id(kPrefix);
  id.reserve(kPrefix.size() + kBase32Characters);
  AppendBase32(Sha256Of(canonical_manifest), id);
  return id;
}

bool IsArtifactId(std::string_view text) {
  if (!BeginsAsArtifactId(text)) return false;
  text.remove_prefix(kPrefix.size());
  if (text.size() != kBase32Characters || text.find_first_not_of(kBase32Alphabet) != std::string_view::npos) {
    return false;
  }
  // The last character holds one bit of the hash; the other four are zero.
  return text.back() == 'a' || text.back() == 'q';
}

bool BeginsAsArtifactId(std::string_view text) { return text.starts_with(kPrefix); }

}  // namespace tensorcast
