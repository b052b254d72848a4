#include "core/handles/ring_room.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace tensorcast::ring_room_test {
namespace {

class RingRoomTest : public ::testing::Test {
 protected:
  // How often room was given back since the last question.
  uint64_t Wakes() const {
    uint64_t wakes = 0;
    return read(wake_, &wakes, sizeof(wakes)) == sizeof(wakes) ? wakes : 0;
  }

  const int wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  const std::shared_ptr<RingRoom> room_ = std::make_shared<RingRoom>(10, UniqueFd(wake_));
};

TEST_F(RingRoomTest, FullRingRoom_RefusesUntilAHoldIsReleased) {
  RingRoom::Hold first = room_->Take(6);
  const RingRoom::Hold second = room_->Take(4);
  ASSERT_TRUE(first && second);
  EXPECT_FALSE(room_->Take(1) != nullptr);
  EXPECT_EQ(room_->used_bytes(), 10u);
  EXPECT_EQ(Wakes(), 0u);
  first.reset();
  EXPECT_EQ(room_->used_bytes(), 4u);
  EXPECT_EQ(Wakes(), 1u);
  EXPECT_FALSE(room_->Take(7) != nullptr);
  EXPECT_TRUE(room_->Take(6) != nullptr);
}

TEST_F(RingRoomTest, RingLargerThanRoom_IsTakenOnlyAlone) {
  RingRoom::Hold small = room_->Take(1);
  EXPECT_FALSE(room_->Take(11) != nullptr);
  small.reset();
  const RingRoom::Hold large = room_->Take(11);
  ASSERT_TRUE(large);
  EXPECT_FALSE(room_->Take(1) != nullptr);
}

TEST_F(RingRoomTest, MovedRingRoomHold_IsReleasedOnce) {
  {
    RingRoom::Hold hold = room_->Take(3);
    const RingRoom::Hold moved = std::move(hold);
    hold.reset();
    EXPECT_EQ(room_->used_bytes(), 3u);
  }
  EXPECT_EQ(room_->used_bytes(), 0u);
  EXPECT_EQ(Wakes(), 1u);
}

}  // namespace
}  // namespace tensorcast::ring_room_test
