#include "core/artifact/digest.h"

#include <algorithm>
#include <cstring>

#include "absl/log/check.h"
#include "absl/strings/escaping.h"
#include "core/artifact/streaming_copy.h"

// The state's definition is only visible with this; the library is linked dynamically all the same.
#define XXH_STATIC_LINKING_ONLY
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // the XXH3 functions become those for the processor at hand
#else
#include <xxhash.h>
#endif

namespace tensorcast {
namespace {

// What is copied stays in the first cache levels until it is digested; a multiple of what the copy does side
// by side (README.md has the figures).
constexpr size_t kFusedStepBytes = size_t{32} << 10;

Digest Canonical(const XXH128_hash_t& hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  Digest digest;
  static_assert(sizeof(canonical.digest) == sizeof(digest.bytes));
  std::memcpy(digest.bytes.data(), canonical.digest, sizeof(canonical.digest));
  return digest;
}

}  // namespace

std::string Digest::ToHex() const {
  return absl::BytesToHexString(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

Digest ComputeDigest(std::span<const std::byte> bytes) {
  return Canonical(XXH3_128bits(bytes.data(), bytes.size()));
}

struct DigestBuilder::State {
  XXH3_state_t xxh;
};

DigestBuilder::DigestBuilder() : state_(std::make_unique<State>()) { Reset(); }
DigestBuilder::~DigestBuilder() = default;
DigestBuilder::DigestBuilder(DigestBuilder&&) noexcept = default;
DigestBuilder& DigestBuilder::operator=(DigestBuilder&&) noexcept = default;

void DigestBuilder::Reset() { CHECK_EQ(XXH3_128bits_reset(&state_->xxh), XXH_OK); }

void DigestBuilder::Update(std::span<const std::byte> bytes) {
  if (bytes.empty()) {  // xxHash takes a null pointer for an error
    return;
  }
  CHECK_EQ(XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size()), XXH_OK);
}

void DigestBuilder::UpdateAndCopy(std::byte* destination, std::span<const std::byte> source) {
  while (!source.empty()) {
    const auto step = source.first(std::min(source.size(), kFusedStepBytes));
    StreamingCopy(destination, step);
    Update(step);  // the source, which the copy left in the cache; the destination went past it
    destination += step.size();
    source = source.subspan(step.size());
  }
}

Digest DigestBuilder::Finish() const { return Canonical(XXH3_128bits_digest(&state_->xxh)); }

}  // namespace tensorcast
