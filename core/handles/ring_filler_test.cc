// The client's end of a ring against servers that keep to no rules.
#include "core/handles/ring_filler.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "core/handles/test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::ring_filler_test {
namespace {

using ::testing::HasSubstr;

class RingFillerTest : public ::testing::Test {
 protected:
  // What Open says of a server that answers STREAM so.
  absl::Status OpenAt(const Frame& answer, int fd) {
    const UniqueFd listening = RawListen(path_, 1);
    std::thread server([&] {
      const UniqueFd socket(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      ReceiveFrame(socket.get());
      SendFrame(socket.get(), HelloAckFrame{});
      ReceiveFrame(socket.get());
      SendFrame(socket.get(), answer, fd);
    });
    const absl::Status status = RingFiller::Open(path_, 4096, Soon()).status();
    server.join();
    return status;
  }

  static UniqueFd Memory(uint64_t bytes, int seals) {
    UniqueFd memory(memfd_create("ring", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(memory.get(), static_cast<off_t>(bytes)), 0);
    EXPECT_EQ(fcntl(memory.get(), F_ADD_SEALS, seals), 0);
    return memory;
  }

  TestFolder folder_;
  const std::string path_ = folder_.socket();
};

TEST_F(RingFillerTest, RingThatCanShrink_IsRefused) {
  const RingShape shape = RingShape::For(4096);
  const UniqueFd memory = Memory(shape.bytes(), F_SEAL_GROW);
  const absl::Status refused = OpenAt(RingFrame{"token", shape}, memory.get());
  EXPECT_TRUE(absl::IsInternal(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("cannot shrink"));
}

TEST_F(RingFillerTest, RingSmallerThanItsShape_IsRefused) {
  const RingShape shape = RingShape::For(4096);
  const UniqueFd memory = Memory(shape.bytes() - 1, F_SEAL_SHRINK | F_SEAL_GROW);
  EXPECT_TRUE(absl::IsInternal(OpenAt(RingFrame{"token", shape}, memory.get())));
}

TEST_F(RingFillerTest, RingFiller_RefusesInvalidRingShape) {
  const UniqueFd memory = Memory(1 << 20, F_SEAL_SHRINK | F_SEAL_GROW);
  EXPECT_TRUE(absl::IsInternal(OpenAt(RingFrame{"token", {kMaxRingSlots + 1, 4096}}, memory.get())));
}

TEST_F(RingFillerTest, RingFiller_RefusesAnswerWithoutMemory) {
  EXPECT_TRUE(absl::IsInternal(OpenAt(RingFrame{"token", RingShape::For(4096)}, -1)));
  EXPECT_TRUE(absl::IsInternal(OpenAt(OfferedFrame{"token"}, -1)));
}

}  // namespace
}  // namespace tensorcast::ring_filler_test
