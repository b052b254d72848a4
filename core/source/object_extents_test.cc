#include "core/source/object_extents.h"

#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::object_extents_test {
namespace {

constexpr uint64_t kHuge = ~uint64_t{0};

TEST(ObjectExtents, ObjectExtents_RefuseOverlapsAndRangesPastObject) {
  const auto refused = [](std::vector<ObjectExtent> extents) {
    return !ObjectExtents::Create(std::move(extents), 1000, {500, 500}).ok();
  };
  EXPECT_FALSE(refused({{0, 0, 0, 500}, {1, 0, 500, 500}}));
  EXPECT_FALSE(refused({}));
  EXPECT_TRUE(refused({{2, 0, 0, 1}})) << "no such object";
  EXPECT_TRUE(refused({{0, 1, 0, 500}})) << "past the object";
  EXPECT_TRUE(refused({{0, kHuge, 0, 2}})) << "past the object, wrapping";
  EXPECT_TRUE(refused({{0, 0, 501, 500}})) << "past the image";
  EXPECT_TRUE(refused({{0, 0, kHuge, 2}})) << "past the image, wrapping";
  EXPECT_TRUE(refused({{0, 0, 0, 100}, {1, 0, 99, 100}})) << "overlap";
  EXPECT_TRUE(refused({{1, 0, 99, 100}, {0, 0, 0, 100}})) << "overlap, out of order";
}

// Carries out the pieces on objects in memory, and compares with the image made byte by byte.
TEST(ObjectExtents, CutRange_GivesPiecesThatMakeUpTheImage) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    const uint64_t image_bytes = 1 + random() % 400;
    const std::vector<uint64_t> object_bytes = {500, 700};
    std::vector<ObjectExtent> extents;
    std::string image(image_bytes, '\0');
    for (uint64_t at = random() % 20; at < image_bytes;) {
      const uint64_t bytes = std::min<uint64_t>(random() % 40, image_bytes - at);
      const uint32_t file = random() % 2;
      const uint64_t object_offset = random() % (object_bytes[file] - bytes + 1);
      extents.push_back({file, object_offset, at, bytes});
      for (uint64_t i = 0; i < bytes; ++i) {
        image[at + i] = static_cast<char>(1 + (file * 97 + object_offset + i) % 251);
      }
      at += bytes + (random() % 2 == 0 ? 0 : random() % 15);
    }
    std::shuffle(extents.begin(), extents.end(), random);
    const auto map = ObjectExtents::Create(extents, image_bytes, object_bytes);
    ASSERT_TRUE(map.ok()) << map.status();

    const uint64_t offset = random() % image_bytes;
    const ByteRange range{offset, random() % (image_bytes - offset + 1)};
    std::string result(range.bytes, 'x');
    std::vector<HostSpan> destination;
    for (uint64_t at = 0; at < range.bytes;) {
      const uint64_t bytes = std::min<uint64_t>(random() % 50, range.bytes - at);
      destination.push_back(std::as_writable_bytes(std::span(result)).subspan(at, bytes));
      at += bytes;
    }
    for (const ObjectPiece& piece : map->Cut(range, destination)) {
      ASSERT_FALSE(piece.destination.empty());
      for (uint64_t i = 0; i < piece.destination.size(); ++i) {
        piece.destination[i] =
            piece.zeros() ? std::byte{0}
                          : static_cast<std::byte>(1 + (piece.object * 97 + piece.object_offset + i) % 251);
      }
    }
    ASSERT_EQ(result, image.substr(range.offset, range.bytes)) << "round " << round;
  }
}

}  // namespace
}  // namespace tensorcast::object_extents_test
