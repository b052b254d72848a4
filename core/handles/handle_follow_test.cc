// A claim that is followed: what its holder learns of a replica that fills or is partial, and what peers that
// do not keep to the protocol can do with it.
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <bit>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "core/handles/codec.h"
#include "core/handles/frame_io.h"
#include "core/handles/handle_client.h"
#include "core/handles/handle_server.h"
#include "core/handles/test_util.h"
#include "core/replica/availability.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::handle_follow_test {
namespace {

using ::testing::ElementsAre;
using testing::Eventually;
using ::testing::HasSubstr;

constexpr uint64_t kPoolBytes = 4 * kGranuleBytes;
constexpr uint64_t kChunkBytes = kGranuleBytes / 64;
constexpr uint64_t kImageBytes = 3 * kGranuleBytes - 5;  // 192 chunks

class FollowedClaim : public ::testing::Test {
 protected:
  // Of the first granules of the image.
  tensorcast::Claim MakeClaim(std::shared_ptr<const Availability> availability, uint64_t granules = 3) {
    tensorcast::Claim claim = HostClaim(pool_.get(), kPoolBytes, {{0, granules * kGranuleBytes}}, kImageBytes,
                                        std::shared_ptr<void>(nullptr, [this](void*) { --held_; }));
    ++held_;
    claim.availability = std::move(availability);
    return claim;
  }
  std::unique_ptr<ClaimedReplica> Claim(tensorcast::Claim claim) {
    auto claimed = ClaimedReplica::Claim(folder_.socket(), server_->IssueTicket(std::move(claim)), Soon());
    EXPECT_TRUE(claimed.ok()) << claimed.status();
    return *std::move(claimed);
  }
  // A raw connection that has claimed it.
  UniqueFd RawClaim(tensorcast::Claim claim) {
    UniqueFd socket = RawGreet(folder_.socket());
    SendFrame(socket.get(), ClaimFrame{server_->IssueTicket(std::move(claim))});
    const std::optional<Frame> answer = ReceiveFrame(socket.get());
    EXPECT_TRUE(answer && std::holds_alternative<HandlesFrame>(*answer));
    return socket;
  }
  void ExpectServes() { EXPECT_TRUE((*Claim(MakeClaim(nullptr))->Follow(kChunkBytes, Soon()))->complete()); }

  TestFolder folder_;
  UniqueFd pool_ = MakePool(kPoolBytes, PoolSeals());
  std::atomic<int> held_ = 0;
  std::shared_ptr<Availability> filling_ = std::make_shared<Availability>(kImageBytes, kChunkBytes);
  std::unique_ptr<HandleServer> server_ = StartServer(folder_.socket());
};

TEST_F(FollowedClaim, Follow_MirrorsPresentAndNewChunksUntilComplete) {
  filling_->Add(1);
  filling_->Add(191);
  const auto claimed = Claim(MakeClaim(filling_));
  const auto mirror = claimed->Follow(kChunkBytes, Soon());
  ASSERT_TRUE(mirror.ok()) << mirror.status();
  EXPECT_EQ((*mirror)->Words(), filling_->Words());
  for (uint32_t chunk = 0; chunk < filling_->chunks(); ++chunk) {
    filling_->Add(chunk);
    if (chunk % 50 != 0) continue;
    EXPECT_TRUE(Eventually([&] { return (*mirror)->Has(chunk); })) << chunk;
  }
  EXPECT_TRUE(Eventually([&] { return (*mirror)->ended(); }));
  EXPECT_TRUE((*mirror)->complete());
  EXPECT_TRUE((*mirror)->end().ok()) << (*mirror)->end();
  EXPECT_FALSE(claimed->lost()) << "the lease goes on";
  EXPECT_EQ(server_->leases(), 1);
}

TEST_F(FollowedClaim, FollowReadyReplica_IsCompleteAtOnce) {
  const auto claimed = Claim(MakeClaim(nullptr));
  const auto mirror = claimed->Follow(kChunkBytes, Soon());
  ASSERT_TRUE(mirror.ok()) << mirror.status();
  EXPECT_TRUE((*mirror)->complete() && (*mirror)->ended());
  EXPECT_EQ(claimed->Follow(kChunkBytes, Soon()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(FollowedClaim, Follow_RefusesZeroChunkSizeAndDeviceMemory) {
  const auto claimed = Claim(MakeClaim(filling_));
  EXPECT_EQ(claimed->Follow(0, Soon()).status().code(), absl::StatusCode::kInvalidArgument);
  const auto device = Claim(DeviceClaim());
  EXPECT_EQ(device->Follow(kChunkBytes, Soon()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(FollowedClaim, FollowFailedReplica_ReportsErrorAndItsChunks) {
  const auto claimed = Claim(MakeClaim(filling_));
  const auto mirror = claimed->Follow(kChunkBytes, Soon());
  ASSERT_TRUE(mirror.ok()) << mirror.status();
  filling_->Add(7);
  filling_->End(absl::CancelledError("no caller waits for it"));
  ASSERT_TRUE(Eventually([&] { return (*mirror)->ended(); }));
  EXPECT_EQ((*mirror)->end(), absl::CancelledError("no caller waits for it"));
  EXPECT_EQ((*mirror)->Words(), filling_->Words());

  // Followed only then.
  const auto late = Claim(MakeClaim(filling_));
  const auto end = late->Follow(kChunkBytes, Soon());
  ASSERT_TRUE(end.ok()) << end.status();
  ASSERT_TRUE(Eventually([&] { return (*end)->ended(); }));
  EXPECT_EQ((*end)->end(), absl::CancelledError("no caller waits for it"));
  EXPECT_EQ((*end)->count(), 1u);
}

TEST_F(FollowedClaim, Follow_MirrorsOnlyChunksWithClaimedMemory) {
  const auto claimed = Claim(MakeClaim(filling_, /*granules=*/1));
  const auto mirror = claimed->Follow(kChunkBytes, Soon());
  ASSERT_TRUE(mirror.ok()) << mirror.status();
  for (const uint32_t chunk : {0u, 63u, 64u, 191u}) filling_->Add(chunk);
  EXPECT_TRUE(Eventually([&] { return (*mirror)->count() == 2; }));
  EXPECT_THAT((*mirror)->Words(), ElementsAre(uint64_t{1} | uint64_t{1} << 63, 0, 0));
  EXPECT_FALSE((*mirror)->ended()) << "more of what it can read may come";
  for (uint32_t chunk = 0; chunk < 64; ++chunk) filling_->Add(chunk);
  ASSERT_TRUE(Eventually([&] { return (*mirror)->ended(); }));
  EXPECT_THAT((*mirror)->Words(), ElementsAre(~uint64_t{0}, 0, 0));
  EXPECT_EQ((*mirror)->end().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string((*mirror)->end().message()), HasSubstr("attach the replica again"));
}

TEST_F(FollowedClaim, LostDaemon_EndsFollowWithUnavailable) {
  const auto claimed = Claim(MakeClaim(filling_));
  const auto mirror = claimed->Follow(kChunkBytes, Soon());
  ASSERT_TRUE(mirror.ok()) << mirror.status();
  server_.reset();
  ASSERT_TRUE(Eventually([&] { return (*mirror)->ended(); }));
  EXPECT_EQ((*mirror)->end().code(), absl::StatusCode::kUnavailable);
  filling_->Add(0);  // no follower is told any more
  EXPECT_EQ(held_, 0);
}

TEST_F(FollowedClaim, LostClient_EndsItsLeaseWhileReplicaFills) {
  for (int i = 0; i < 20; ++i) {
    std::shared_ptr<const Availability> mirror;
    std::thread filler([&] {
      for (uint32_t chunk = 0; chunk < filling_->chunks(); ++chunk) filling_->Add(chunk);
    });
    {
      const auto claimed = Claim(MakeClaim(filling_));
      const auto followed = claimed->Follow(kChunkBytes, Soon());
      EXPECT_TRUE(followed.ok()) << followed.status();
      if (followed.ok()) mirror = *followed;
    }
    EXPECT_TRUE(Eventually([&] { return held_ == 0; }));
    filler.join();
    EXPECT_TRUE(mirror != nullptr && mirror->count() <= filling_->chunks());
    filling_ = std::make_shared<Availability>(kImageBytes, kChunkBytes);
  }
  EXPECT_EQ(server_->leases(), 0);
}

TEST_F(FollowedClaim, HaveFrames_AreSentOncePerInterval) {
  const UniqueFd socket = RawClaim(MakeClaim(filling_));
  const SteadyTime begin = SteadyNow();
  SendFrame(socket.get(), FollowFrame{});
  std::thread filler([&] {
    // One after the other as they are told.
    for (uint32_t chunk = 0; chunk < filling_->chunks(); ++chunk) {
      filling_->Add(chunk);
      if (chunk % 8 == 0) std::this_thread::yield();
    }
  });
  int messages = 0;
  uint32_t told = 0;
  bool over = false;
  while (!over) {
    const std::optional<Frame> frame = ReceiveFrame(socket.get());
    ASSERT_TRUE(frame.has_value());
    over = std::holds_alternative<HaveEndFrame>(*frame);
    if (over) break;
    ++messages;
    told = 0;
    for (const uint64_t word : std::get<HaveFrame>(*frame).words) told += std::popcount(word);
  }
  filler.join();
  EXPECT_GT(told, 0u);
  EXPECT_LE(messages, 1 + (SteadyNow() - begin) / absl::Milliseconds(10));
}

TEST_F(FollowedClaim, SlowFollower_GetsRemainingChunksInOneMessage) {
  // A bitmap that no socket's buffer holds.
  constexpr uint32_t kChunks = 32 << 20;
  const auto large = std::make_shared<Availability>(uint64_t{kChunks} * 4096, 4096);
  tensorcast::Claim claim = DeviceClaim();
  claim.availability = large;
  const UniqueFd socket = RawClaim(std::move(claim));
  SendFrame(socket.get(), FollowFrame{});
  pollfd readable{socket.get(), POLLIN, 0};
  ASSERT_EQ(poll(&readable, 1, 60'000), 1);
  for (uint32_t i = 0; i < 1000; ++i) {
    large->Add(i);
    large->Add(kChunks - 1 - i);
    if (i % 100 == 0) ExpectServes();  // others meanwhile
  }
  large->End(absl::CancelledError("over"));
  std::vector<size_t> words;
  std::optional<Frame> frame;
  while ((frame = ReceiveFrame(socket.get())) && std::holds_alternative<HaveFrame>(*frame)) {
    words.push_back(std::get<HaveFrame>(*frame).words.size());
  }
  EXPECT_THAT(words, ElementsAre(kChunks / 64, kChunks / 64));
  ASSERT_TRUE(frame && std::holds_alternative<HaveEndFrame>(*frame));
  EXPECT_EQ(std::get<HaveEndFrame>(*frame).status, absl::CancelledError("over"));
}

TEST_F(FollowedClaim, SecondOrEarlyFollow_EndsConnection) {
  const UniqueFd early = RawGreet(folder_.socket());
  SendFrame(early.get(), FollowFrame{});
  EXPECT_EQ(ErrorOf(ReceiveFrame(early.get())), absl::StatusCode::kInvalidArgument);

  const UniqueFd twice = RawClaim(MakeClaim(filling_));
  SendFrame(twice.get(), FollowFrame{});
  const std::optional<Frame> first = ReceiveFrame(twice.get());
  EXPECT_TRUE(first && std::holds_alternative<HaveFrame>(*first));
  SendFrame(twice.get(), FollowFrame{});
  EXPECT_EQ(ErrorOf(ReceiveFrame(twice.get())), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Eventually([&] { return held_ == 0; }));
  filling_->Add(3);
  ExpectServes();
}

TEST_F(FollowedClaim, FollowFlood_EndsOnlyItsConnection) {
  const UniqueFd socket = RawClaim(MakeClaim(filling_));
  std::string flood;
  for (int i = 0; i < 10'000; ++i) flood += *EncodeFrame(FollowFrame{});
  // Some of it only, where the server ends the connection before all is sent.
  SendSome(socket.get(), flood, {}).IgnoreError();
  EXPECT_TRUE(Eventually([&] { return held_ == 0; }));
  ExpectServes();
}

TEST_F(FollowedClaim, FollowAfterDeviceMemoryIsClosed_IsRefused) {
  tensorcast::Claim claim = DeviceClaim();
  claim.availability = filling_;
  const UniqueFd socket = RawClaim(std::move(claim));
  SendFrame(socket.get(), ClosedFrame{});
  const std::optional<Frame> closed = ReceiveFrame(socket.get());
  EXPECT_TRUE(closed && std::holds_alternative<ClosedFrame>(*closed));
  SendFrame(socket.get(), FollowFrame{});
  EXPECT_EQ(ErrorOf(ReceiveFrame(socket.get())), absl::StatusCode::kInvalidArgument);
}

// What a daemon that does not keep to the protocol announces to a client of the image's first granule.
TEST_F(FollowedClaim, InvalidHaveFrames_EndFollow) {
  const std::string path = folder_.path() + "/lying.sock";
  const Frame first = HaveFrame{0, {1, 0, 0}};
  const std::pair<std::vector<Frame>, const char*> conversations[] = {
      {{HaveFrame{0, {1, 0}}}, "2 words"},
      {{HaveFrame{64, {1, 0, 0}}}, "from chunk 64"},
      {{HaveFrame{0, {1, 2, 0}}}, "no memory for that chunk"},
      {{HaveEndFrame{absl::OkStatus()}}, "gave no memory for some"},
      {{HaveEndFrame{absl::AbortedError("sorry")}}, "sorry"},
      {{ClosedFrame{}}, "CLOSED"},
      {{ErrorFrame{absl::AbortedError("sorry")}}, "sorry"},
      {{first, HaveFrame{128, {1}}}, "no memory for that chunk"},
      {{first, HaveFrame{192, {1}}}, "words from chunk 192"},
      {{first, HaveFrame{0, {}}}, "0 words"},
      {{first, HaveEndFrame{absl::OkStatus()}}, "sent HAVE_END after 1 of"},
      {{first, HandlesFrame{}}, "HANDLES"},
      {{first, ErrorFrame{absl::AbortedError("sorry")}}, "sorry"},
      {{first}, "closed the connection"},
  };
  const int before = OpenDescriptors();
  for (const auto& [conversation, message] : conversations) {
    const UniqueFd listener = RawListen(path, 1);
    ASSERT_TRUE(listener);
    std::thread server([&, sent = conversation] {
      const UniqueFd peer(accept(listener.get(), nullptr, nullptr));
      EXPECT_TRUE(ReceiveFrame(peer.get()).has_value());  // HELLO
      SendFrame(peer.get(), HelloAckFrame{});
      EXPECT_TRUE(ReceiveFrame(peer.get()).has_value());  // CLAIM
      const tensorcast::Claim claim = HostClaim(pool_.get(), kPoolBytes, {{0, kGranuleBytes}}, kImageBytes);
      SendFrame(peer.get(), HandlesFrame{claim.handles}, pool_.get());
      EXPECT_TRUE(ReceiveFrame(peer.get()).has_value());  // FOLLOW
      for (const Frame& frame : sent) SendFrame(peer.get(), frame);
    });
    auto claimed = ClaimedReplica::Claim(path, "x", Soon());
    ASSERT_TRUE(claimed.ok()) << claimed.status();
    const auto mirror = (*claimed)->Follow(kChunkBytes, Soon());
    server.join();
    absl::Status end = mirror.status();
    if (mirror.ok()) {
      ASSERT_TRUE(Eventually([&] { return (*mirror)->ended(); })) << message;
      end = (*mirror)->end();
      EXPECT_THAT((*mirror)->Words(), ElementsAre(1, 0, 0)) << message;
    }
    EXPECT_EQ(mirror.ok(), conversation.size() > 1 || std::string_view(message) == "closed the connection");
    EXPECT_FALSE(end.ok()) << message;
    EXPECT_THAT(std::string(end.message()), HasSubstr(message));
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

}  // namespace
}  // namespace tensorcast::handle_follow_test
