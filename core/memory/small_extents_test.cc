#include "core/memory/small_extents.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace tensorcast::small_extents_test {
namespace {

constexpr uint64_t kPage = 4096;

TEST(SmallExtents, SmallExtentsWithoutGranule_AllocateNothing) {
  SmallExtents extents(kPage);
  EXPECT_EQ(extents.Allocate(1), std::nullopt);
  EXPECT_EQ(extents.free_bytes(), 0u);
}

TEST(SmallExtents, SmallExtent_CoversWholePagesOfOneGranule) {
  SmallExtents extents(kPage);
  extents.AddGranule(3);
  EXPECT_EQ(extents.Allocate(1), (Extent{3 * kGranuleBytes, kPage}));
  EXPECT_EQ(extents.Allocate(kPage + 1), (Extent{3 * kGranuleBytes + kPage, 2 * kPage}));
  EXPECT_EQ(extents.Allocate(kGranuleBytes - 2 * kPage), std::nullopt);
  EXPECT_EQ(extents.free_bytes(), kGranuleBytes - 3 * kPage);
}

TEST(SmallExtents, LastReleasedSmallExtent_ReturnsItsGranule) {
  SmallExtents extents(kPage);
  extents.AddGranule(7);
  const Extent first = *extents.Allocate(kPage);
  const Extent second = *extents.Allocate(kPage);
  extents.AddReference(second);
  EXPECT_EQ(extents.DropReference(second), std::nullopt);
  EXPECT_EQ(extents.DropReference(first), std::nullopt);
  EXPECT_EQ(extents.DropReference(second), 7u);
  EXPECT_EQ(extents.free_bytes(), 0u);
  EXPECT_EQ(extents.Allocate(1), std::nullopt);
}

// No page is handed out twice, whatever comes and goes, and nothing is lost.
TEST(SmallExtents, RandomSmallExtents_NeverOverlap) {
  SmallExtents extents(kPage);
  std::mt19937 random(7);
  std::vector<Extent> pieces;
  std::set<uint64_t> pages;
  std::set<uint64_t> granules;
  uint64_t next_granule = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (pieces.empty() || random() % 5 < 3) {
      const uint64_t bytes = 1 + random() % (uint64_t{1} << 20);
      std::optional<Extent> piece = extents.Allocate(bytes);
      if (!piece.has_value()) {
        granules.insert(next_granule);
        extents.AddGranule(next_granule++);
        piece = extents.Allocate(bytes);
      }
      ASSERT_TRUE(piece.has_value());
      ASSERT_GE(piece->bytes, bytes);
      ASSERT_TRUE(granules.contains(piece->offset / kGranuleBytes));
      for (uint64_t page = 0; page < piece->bytes; page += kPage) {
        ASSERT_TRUE(pages.insert(piece->offset + page).second);
      }
      pieces.push_back(*piece);
    } else {
      std::swap(pieces[random() % pieces.size()], pieces.back());
      const Extent piece = pieces.back();
      pieces.pop_back();
      for (uint64_t page = 0; page < piece.bytes; page += kPage) pages.erase(piece.offset + page);
      if (const auto granule = extents.DropReference(piece)) granules.erase(*granule);
    }
    ASSERT_EQ(extents.free_bytes(), granules.size() * kGranuleBytes - pages.size() * kPage);
    if (pieces.size() > 400) {
      while (pieces.size() > 20) {
        for (uint64_t page = 0; page < pieces.back().bytes; page += kPage) {
          pages.erase(pieces.back().offset + page);
        }
        if (const auto granule = extents.DropReference(pieces.back())) granules.erase(*granule);
        pieces.pop_back();
      }
    }
  }
}

}  // namespace
}  // namespace tensorcast::small_extents_test
