// Splits byte strings that can be larger than a gRPC message (manifests) into pieces, and joins them again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"

namespace tensorcast::rpc {

inline constexpr size_t kPieceBytes = size_t{1} << 20;
inline constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 30;

// The number of pieces of `bytes`: at least one, so that an empty string is sent too.
size_t PieceCount(uint64_t bytes, size_t piece_bytes = kPieceBytes);
// REQUIRES: index < PieceCount(bytes.size(), piece_bytes).
std::string_view Piece(std::string_view bytes, size_t index, size_t piece_bytes = kPieceBytes);

// A manifest as a sequence of messages with one piece each, for StreamWriter::WriteRest. `holder` keeps
// `manifest` alive.
template <class Message>
std::function<std::optional<Message>()> ManifestPieces(std::shared_ptr<const void> holder,
                                                       std::string_view manifest) {
  return [holder = std::move(holder), manifest, next = size_t{0}]() mutable -> std::optional<Message> {
    if (next == PieceCount(manifest.size())) return std::nullopt;
    Message message;
    message.set_manifest_piece(std::string(Piece(manifest, next++)));
    return message;
  };
}

// Joins pieces. Thread-compatible.
class PieceJoiner {
 public:
  explicit PieceJoiner(uint64_t max_bytes = kMaxManifestBytes) : max_bytes_(max_bytes) {}

  // RESOURCE_EXHAUSTED when the sum would exceed the max; the earlier pieces are kept.
  absl::Status Add(std::string_view piece);
  const std::string& bytes() const { return bytes_; }
  std::string Take() { return std::move(bytes_); }

 private:
  uint64_t max_bytes_;
  std::string bytes_;
};

}  // namespace tensorcast::rpc
