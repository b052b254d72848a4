// Bytes that are stored in pieces, such as the granules of a chunk. Pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace tensorcast {

// Walks two lists of pieces side by side: calls visit(a's bytes, b's bytes) with parts of equal size, front
// to back, until one of the lists ends.
template <typename A, typename B, typename Visit>
void ZipPieces(std::span<const A> a, std::span<const B> b, const Visit& visit) {
  A from_a;
  B from_b;
  for (;;) {
    while (from_a.empty() && !a.empty()) {
      from_a = a.front();
      a = a.subspan(1);
    }
    while (from_b.empty() && !b.empty()) {
      from_b = b.front();
      b = b.subspan(1);
    }
    const size_t bytes = std::min(from_a.size(), from_b.size());
    if (bytes == 0) return;
    visit(from_a.first(bytes), from_b.first(bytes));
    from_a = from_a.subspan(bytes);
    from_b = from_b.subspan(bytes);
  }
}

}  // namespace tensorcast
