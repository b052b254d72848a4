#include "rpc/pieces.h"

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"

namespace tensorcast::rpc {

// No bytes are one empty piece, so that each stream of pieces has a message.
size_t PieceCount(uint64_t bytes, size_t piece_bytes) {
  return bytes == 0 ? 1 : static_cast<size_t>((bytes - 1) / piece_bytes + 1);
}

std::string_view Piece(std::string_view bytes, size_t index, size_t piece_bytes) {
  CHECK_LT(index, PieceCount(bytes.size(), piece_bytes));
  return bytes.substr(index * piece_bytes, piece_bytes);
}

absl::Status PieceJoiner::Add(std::string_view piece) {
  // bytes_ never passes the limit, so the difference cannot wrap.
  if (piece.size() > max_bytes_ - bytes_.size()) {
    return absl::ResourceExhaustedError(absl::StrCat("receive a manifest: the manifest has more than ",
                                                     max_bytes_,
                                                     " bytes; put fewer tensors in one artifact"));
  }
  bytes_.append(piece);
  return absl::OkStatus();
}

}  // namespace tensorcast::rpc
