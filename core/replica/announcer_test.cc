// What is announced of an image that fills: each chunk once, in as few pieces as it takes.
#include "core/replica/announcer.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::announcer_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kBit0 = 1;
constexpr size_t kMaxWords = 62;

std::shared_ptr<Availability> NewImage(uint32_t chunks) {
  return std::make_shared<Availability>(uint64_t{chunks} * 4096 - 1, 4096);
}

TEST(Announcer, TakeNews_ReturnsEachChunkOnce) {
  const auto image = NewImage(70);
  image->Add(1);
  Announcer announcer(image);
  EXPECT_THAT(announcer.TakeNews(kMaxWords), ElementsAre(Announcement{.first = 0, .words = {kBit0 << 1}}));
  EXPECT_THAT(announcer.TakeNews(kMaxWords), IsEmpty());
  image->Add(1);
  EXPECT_THAT(announcer.TakeNews(kMaxWords), IsEmpty());
  image->Add(69);
  EXPECT_THAT(announcer.TakeNews(kMaxWords), ElementsAre(Announcement{.first = 64, .words = {kBit0 << 5}}));
  image->Add(0);
  image->Add(64);
  EXPECT_THAT(announcer.TakeNews(kMaxWords),
              ElementsAre(Announcement{.first = 0, .words = {3, kBit0 << 5 | 1}}));
  EXPECT_THAT(announcer.told(), ElementsAre(3, kBit0 << 5 | 1));
}

TEST(Announcer, TakeNews_OmitsHiddenChunks) {
  const auto image = NewImage(130);
  Announcer announcer(image, {~kBit0, 0, 3});
  for (const uint32_t chunk : {0u, 1u, 70u, 129u}) image->Add(chunk);
  EXPECT_THAT(announcer.TakeNews(kMaxWords), ElementsAre(Announcement{.first = 0, .words = {2, 0, 2}}));
  image->Add(2);
  image->Add(71);
  EXPECT_THAT(announcer.TakeNews(kMaxWords), ElementsAre(Announcement{.first = 0, .words = {6}}));
}

TEST(Announcer, FitsImage_RefusesWordsPastTheLastChunk) {
  const auto fits = [](uint32_t first, std::vector<uint64_t> words, uint32_t chunks) {
    return FitsImage(first, words, chunks);
  };
  EXPECT_TRUE(fits(0, {~uint64_t{0}}, 64));
  EXPECT_TRUE(fits(0, {~uint64_t{0}, 0, 1}, 129));
  EXPECT_TRUE(fits(64, {7}, 67));
  EXPECT_FALSE(fits(64, {8}, 67)) << "a bit behind the last chunk";
  EXPECT_FALSE(fits(0, {1, 0}, 64)) << "a word without a chunk";
  EXPECT_FALSE(fits(128, {0}, 67)) << "behind the image";
  EXPECT_FALSE(fits(~uint32_t{63}, {1}, 67));
  EXPECT_FALSE(fits(0, {}, 67)) << "nothing is announced";
}

TEST(Announcer, TakeNews_SplitsNewsIntoPiecesOfMaxWords) {
  constexpr uint32_t kWords = 2 * kMaxWords + 1;
  const auto image = NewImage(kWords * 64);
  Announcer announcer(image);
  for (const uint32_t word : {1u, 5u, uint32_t{kMaxWords} + 1, kWords - 1}) image->Add(word * 64);
  const std::vector<Announcement> news = announcer.TakeNews(kMaxWords);
  ASSERT_THAT(news, SizeIs(2));
  EXPECT_EQ(news[0].first, 64u);
  EXPECT_EQ(news[0].words, (std::vector<uint64_t>{kBit0, 0, 0, 0, kBit0}));
  EXPECT_EQ(news[1].first, (kMaxWords + 1) * 64);
  EXPECT_EQ(news[1].words.size(), kMaxWords);
  EXPECT_EQ(news[1].words.front(), kBit0);
  EXPECT_EQ(news[1].words.back(), kBit0);
}

TEST(Announcer, TakeNews_TellsWholeImageInFullPieces) {
  const auto image = NewImage(10000);
  Announcer announcer(image);
  for (uint32_t chunk = 0; chunk < 10000; ++chunk) image->Add(chunk);
  Availability told(image->image_bytes(), image->chunk_bytes());
  const std::vector<Announcement> news = announcer.TakeNews(kMaxWords);
  EXPECT_THAT(news, SizeIs(3));
  for (const Announcement& have : news) told.AddWords(have.first, have.words);
  EXPECT_TRUE(told.complete());
}

}  // namespace
}  // namespace tensorcast::announcer_test
