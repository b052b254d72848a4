#include "core/artifact/manifest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <span>

#include "absl/log/check.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "core/artifact/manifest_codec.h"

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
  if (pending_bits > 0) out += kBase32Alphabet[pending << (5 - pending_bits) & 31];
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Manifest>> Manifest::Create(
    ImageLayout layout, std::vector<Digest> digests, std::map<std::string, std::string> metadata) {
  ManifestFields fields{std::move(layout), std::move(digests), std::move(metadata)};
  TC_ASSIGN_OR_RETURN(std::string bytes, EncodeManifest(fields));
  return Make(std::move(fields), std::move(bytes));
}

absl::StatusOr<std::shared_ptr<const Manifest>> Manifest::Decode(std::string_view bytes) {
  TC_ASSIGN_OR_RETURN(ManifestFields fields, DecodeManifest(bytes));
  return Make(std::move(fields), std::string(bytes));
}

std::shared_ptr<const Manifest> Manifest::Make(ManifestFields fields, std::string bytes) {
  std::shared_ptr<Manifest> manifest(new Manifest());
  manifest->layout_ = std::move(fields.layout);
  manifest->digests_ = std::move(fields.digests);
  manifest->metadata_ = std::move(fields.metadata);
  manifest->id_ = ArtifactId(bytes);
  manifest->bytes_ = std::move(bytes);
  manifest->by_name_.resize(manifest->layout_.tensors.size());
  std::iota(manifest->by_name_.begin(), manifest->by_name_.end(), 0u);
  std::sort(manifest->by_name_.begin(), manifest->by_name_.end(),
            [&tensors = manifest->layout_.tensors](uint32_t a, uint32_t b) {
              return tensors[a].name < tensors[b].name;
            });
  return manifest;
}

const Tensor* Manifest::Find(std::string_view name) const {
  const auto found = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [this](uint32_t index, std::string_view wanted) { return layout_.tensors[index].name < wanted; });
  if (found == by_name_.end() || layout_.tensors[*found].name != name) return nullptr;
  return &layout_.tensors[*found];
}

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
