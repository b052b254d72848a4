// The ring of a put: both ends over a real socket, clients that break its rules, and which put gets one when.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/testing/eventually.h"
#include "core/handles/frame_io.h"
#include "core/handles/put_ring.h"
#include "core/handles/ring_filler.h"
#include "core/handles/test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::put_ring_test {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

std::vector<std::byte> Bytes(uint64_t size) {
  std::vector<std::byte> bytes(size);
  for (uint64_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 4096);
  return bytes;
}

RingFiller::Fill Copy(const std::vector<std::byte>& image) {
  return [&image](int, uint64_t offset, HostSpan to) {
    std::memcpy(to.data(), image.data() + offset, to.size());
    return absl::OkStatus();
  };
}

// A client that has a ring and keeps to no rules with it.
struct RawRing {
  UniqueFd socket;
  UniqueFd memory;
  std::string token;
  RingShape shape;
  RingHeader* header = nullptr;
};

class PutRingTest : public ::testing::Test {
 protected:
  void Start(uint64_t rings_bytes = 256 * kMiB, absl::Duration stall_timeout = absl::Seconds(30)) {
    auto server = HandleServer::Start(
        {.path = folder_.socket(), .put_rings_bytes = rings_bytes, .stall_timeout = stall_timeout});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  std::unique_ptr<RingFiller> Open(uint64_t image_bytes) {
    auto filler = RingFiller::Open(folder_.socket(), image_bytes, Soon());
    EXPECT_TRUE(filler.ok()) << filler.status();
    return filler.ok() ? *std::move(filler) : nullptr;
  }

  std::shared_ptr<PutRing> Take(const std::string& token) {
    auto offer = server_->TakeOffer(token);
    EXPECT_TRUE(offer.ok()) << offer.status();
    return offer.ok() ? offer->ring : nullptr;
  }

  RawRing OpenRaw(uint64_t image_bytes) {
    RawRing raw{.socket = RawGreet(folder_.socket())};
    SendFrame(raw.socket.get(), StreamFrame{image_bytes});
    FrameReader reader(kMaxServerFrameBytes, kMaxFrameDescriptors);
    EXPECT_TRUE(testing::Eventually([&] {
      auto incoming = reader.Read(raw.socket.get());
      if (!incoming.ok() || !incoming->has_value()) return false;
      const auto& frame = std::get<RingFrame>((*incoming)->frame);
      raw.token = frame.token;
      raw.shape = frame.shape;
      raw.memory = std::move((*incoming)->fds.front());
      return true;
    }));
    void* mapped = mmap(nullptr, raw.shape.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, raw.memory.get(), 0);
    EXPECT_NE(mapped, MAP_FAILED);
    raw.header = static_cast<RingHeader*>(mapped);
    return raw;
  }

  bool RoomIsFree() {
    return testing::Eventually([this] { return server_->put_ring_bytes() == 0; });
  }

  TestFolder folder_;
  std::unique_ptr<HandleServer> server_;
  const RequestContext context_ = RequestContext::Background(absl::Seconds(60));
};

TEST_F(PutRingTest, PutRing_DeliversPiecesInRequestedOrder) {
  Start();
  const std::vector<std::byte> image = Bytes(20 * kMiB + 13);
  auto filler = Open(image.size());
  ASSERT_TRUE(filler->Start(3, Copy(image), nullptr).ok());
  auto ring = Take(filler->token());
  const RingShape shape = ring->shape();
  std::vector<std::byte> back(image.size());
  // From the end, so that the slots have nothing to do with the image's order.
  std::vector<uint64_t> begins;
  for (uint64_t at = 0; at < image.size(); at += shape.slot_bytes) begins.push_back(at);
  std::ranges::reverse(begins);
  const auto ask = [&](size_t i) {
    const uint64_t bytes = std::min<uint64_t>(shape.slot_bytes, image.size() - begins[i]);
    ring->Ask(i % shape.slots, begins[i], static_cast<uint32_t>(bytes));
  };
  for (size_t i = 0; i < shape.slots; ++i) ask(i);
  for (size_t i = 0; i < begins.size(); ++i) {
    auto piece = ring->Await(context_, i % shape.slots, "a test");
    ASSERT_TRUE(piece.ok()) << piece.status();
    std::ranges::copy(*piece, back.begin() + static_cast<ptrdiff_t>(begins[i]));
    if (i + shape.slots < begins.size()) ask(i + shape.slots);
  }
  EXPECT_TRUE(back == image);
  EXPECT_TRUE(filler->Stop().ok());
}

TEST_F(PutRingTest, SmallImage_TakesSmallRing) {
  Start();
  auto filler = Open(5);
  EXPECT_EQ(filler->slots().size(), RingShape::For(5).slot_bytes);
  EXPECT_LT(server_->put_ring_bytes(), kMiB);
  EXPECT_LE(RingShape::For(uint64_t{1} << 40).bytes(), 16 * kMiB);
}

TEST_F(PutRingTest, PutRingMemory_CannotBeShrunkByClient) {
  Start();
  const RawRing raw = OpenRaw(4 * kMiB);
  EXPECT_NE(ftruncate(raw.memory.get(), 0), 0);
  EXPECT_EQ(errno, EPERM);
  EXPECT_NE(fcntl(raw.memory.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0) << "another seal was added";
}

TEST_F(PutRingTest, PunchedHole_ReadsAsZerosAtTheDaemon) {
  Start();
  const RawRing raw = OpenRaw(4 * kMiB);
  auto ring = Take(raw.token);
  ring->Ask(0, 0, 4096);
  ASSERT_EQ(fallocate(raw.memory.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kRingHeaderBytes,
                      static_cast<off_t>(raw.shape.bytes() - kRingHeaderBytes)),
            0);
  raw.header->slots[0].done.store(1);
  const auto piece = ring->Await(context_, 0, "a test");
  ASSERT_TRUE(piece.ok()) << piece.status();
  EXPECT_TRUE(std::ranges::all_of(*piece, [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST_F(PutRingTest, WildNumbersInSharedMemory_EndOnlyThatPut) {
  Start();
  const RawRing raw = OpenRaw(8 * kMiB);
  auto ring = Take(raw.token);
  ring->Ask(3, kMiB, 4096);
  // What the daemon asked for is its own business, whatever stands there now.
  RingSlot& slot = raw.header->slots[3];
  slot.bytes.store(~uint32_t{0});
  slot.image_offset.store(~uint64_t{0});
  slot.asked.store(77);
  slot.done.store(1);
  auto piece = ring->Await(context_, 3, "a test");
  ASSERT_TRUE(piece.ok()) << piece.status();
  EXPECT_EQ(piece->size(), 4096u);
  ring->Ask(3, kMiB, 4096);
  slot.done.store(0xdeadbeef);
  EXPECT_TRUE(absl::IsInvalidArgument(ring->Await(context_, 3, "a test").status()));
}

TEST_F(PutRingTest, StoppedClient_LosesItsPutRingAfterStallTimeout) {
  Start(256 * kMiB, absl::Seconds(1));
  const RawRing raw = OpenRaw(8 * kMiB);
  auto ring = Take(raw.token);
  ring->Ask(0, 0, 4096);
  const absl::Status stalled = ring->Await(context_, 0, "chunk 7").status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(stalled)) << stalled;
  EXPECT_THAT(stalled.message(), HasSubstr("chunk 7: the client has filled nothing for 1s"));
  // As the ingest's source does at its end. The client has the memory mapped, and does not read its socket.
  ring->End();
  ring.reset();
  EXPECT_TRUE(RoomIsFree());
  struct stat after;
  ASSERT_EQ(fstat(raw.memory.get(), &after), 0);
  EXPECT_LE(after.st_blocks * 512, 4096) << "pages are left to a client that does not go on";
}

TEST_F(PutRingTest, UnusedPutRing_IsReleasedAfterStallTimeout) {
  Start(256 * kMiB, absl::Seconds(1));
  auto filler = Open(8 * kMiB);
  EXPECT_GT(server_->put_ring_bytes(), 0u);
  EXPECT_TRUE(RoomIsFree());
  EXPECT_TRUE(absl::IsNotFound(server_->TakeOffer(filler->token()).status()));
}

TEST_F(PutRingTest, PutRingInUse_OutlivesTheStallTimeout) {
  Start(256 * kMiB, absl::Seconds(1));
  const std::vector<std::byte> image = Bytes(8 * kMiB);  // outlives the threads that fill the ring
  auto filler = Open(8 * kMiB);
  auto ring = Take(filler->token());  // its ingest waits for its turn
  const uint64_t each = server_->put_ring_bytes();
  auto late = Open(8 * kMiB);  // which is taken back after the first's time has passed, too
  EXPECT_TRUE(testing::Eventually([&] { return server_->put_ring_bytes() == each; }));
  ASSERT_TRUE(filler->Start(1, Copy(image), nullptr).ok());
  ring->Ask(0, 0, 4096);
  EXPECT_TRUE(ring->Await(context_, 0, "a test").ok());
}

TEST_F(PutRingTest, DroppedPutRing_IsReleased) {
  Start();
  const RawRing raw = OpenRaw(8 * kMiB);
  Take(raw.token);  // a put that ends before it asks for anything
  EXPECT_TRUE(RoomIsFree());
  char byte;
  EXPECT_TRUE(testing::Eventually([&] { return recv(raw.socket.get(), &byte, 1, MSG_DONTWAIT) == 0; }));
}

// As the duplicate of the client's socket is where no descriptor is free.
TEST_F(PutRingTest, PutRingWithoutConnection_IsNotMade) {
  const auto ring = PutRing::Create(RingShape::For(kMiB), absl::Seconds(1), /*room=*/nullptr, UniqueFd());
  EXPECT_TRUE(absl::IsResourceExhausted(ring.status())) << ring.status();
}

TEST_F(PutRingTest, ClosedConnection_EndsPutRingAwait) {
  Start();
  auto filler = Open(8 * kMiB);
  auto ring = Take(filler->token());
  ring->Ask(0, 0, 4096);
  filler.reset();
  EXPECT_TRUE(absl::IsUnavailable(ring->Await(context_, 0, "a test").status()));
  ring.reset();
  EXPECT_TRUE(RoomIsFree());
}

TEST_F(PutRingTest, CancelledContext_EndsPutRingAwait) {
  Start();
  auto filler = Open(8 * kMiB);
  auto ring = Take(filler->token());
  ring->Ask(0, 0, 4096);
  const RequestContext context = RequestContext::Background(absl::Seconds(60));
  std::thread canceller([&] { context.cancellation.Cancel(); });
  EXPECT_TRUE(absl::IsCancelled(ring->Await(context, 0, "a test").status()));
  canceller.join();
  EXPECT_TRUE(ring->asked(0)) << "the client may still write there";
}

TEST_F(PutRingTest, FailedFill_IsReturnedToTheClient) {
  Start();
  auto filler = Open(8 * kMiB);
  absl::Notification failed;
  ASSERT_TRUE(filler
                  ->Start(
                      2, [](int, uint64_t, HostSpan) { return absl::InvalidArgumentError("tensor \"t\""); },
                      [&] { failed.Notify(); })
                  .ok());
  auto ring = Take(filler->token());
  ring->Ask(0, 0, 4096);
  ring->Ask(1, 4096, 4096);
  failed.WaitForNotification();
  EXPECT_EQ(filler->Stop(), absl::InvalidArgumentError("tensor \"t\""));
}

TEST_F(PutRingTest, DaemonThatAsksBeyondTheImage_IsRefused) {
  Start();
  auto filler = Open(4096);
  const std::vector<std::byte> image = Bytes(4096);
  absl::Notification failed;
  ASSERT_TRUE(filler->Start(1, Copy(image), [&] { failed.Notify(); }).ok());
  auto ring = Take(filler->token());
  ring->Ask(0, 4000, 97);
  failed.WaitForNotification();
  EXPECT_TRUE(absl::IsInternal(filler->Stop()));
}

TEST_F(PutRingTest, PutsWithoutRingSpace_WaitInOrder) {
  const uint64_t each = RingShape::For(8 * kMiB).bytes();
  Start(2 * each);
  auto first = Open(8 * kMiB);
  auto second = Open(8 * kMiB);
  EXPECT_EQ(server_->put_ring_bytes(), 2 * each);
  // A small one behind a large one, which would have no room before it.
  UniqueFd third = RawGreet(folder_.socket());
  SendFrame(third.get(), StreamFrame{8 * kMiB});
  ASSERT_TRUE(testing::Eventually([&] { return server_->put_rings_awaited() == 1; }));
  UniqueFd fourth = RawGreet(folder_.socket());
  SendFrame(fourth.get(), StreamFrame{8 * kMiB});
  ASSERT_TRUE(testing::Eventually([&] { return server_->put_rings_awaited() == 2; }));
  first.reset();
  EXPECT_TRUE(std::holds_alternative<RingFrame>(*ReceiveFrame(third.get())));
  char byte;
  EXPECT_LT(recv(fourth.get(), &byte, 1, MSG_DONTWAIT), 0) << "overtook, or is over the bound";
  EXPECT_EQ(server_->put_ring_bytes(), 2 * each);
  third = UniqueFd();  // which has room, and dies
  EXPECT_TRUE(std::holds_alternative<RingFrame>(*ReceiveFrame(fourth.get())));
  second.reset();
  fourth = UniqueFd();
  EXPECT_TRUE(RoomIsFree());
}

TEST_F(PutRingTest, PutWithoutRingSpace_FailsAtItsDeadline) {
  Start(1);  // no room but for one at a time
  auto first = Open(8 * kMiB);
  const auto late = RingFiller::Open(folder_.socket(), kMiB, SteadyNow() + absl::Milliseconds(100));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << late.status();
  EXPECT_THAT(late.status().message(), HasSubstr("daemon.put_rings"));
  const Cancellation cancellation;
  std::thread canceller([&] {
    EXPECT_TRUE(testing::Eventually([&] { return server_->put_rings_awaited() == 1; }));
    cancellation.Cancel();
  });
  EXPECT_TRUE(absl::IsUnavailable(RingFiller::Open(folder_.socket(), kMiB, Soon(), cancellation).status()));
  canceller.join();
  // Those that have gone are not obstacles to the next.
  first.reset();
  EXPECT_NE(Open(kMiB), nullptr);
}

TEST_F(PutRingTest, ConcurrentPuts_StayWithinPutRingsLimit) {
  const uint64_t each = RingShape::For(8 * kMiB).bytes();
  Start(3 * each);
  std::atomic<uint64_t> max_used = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < 12; ++i) {
    clients.emplace_back([&] {
      for (int put = 0; put < 10; ++put) {
        auto filler = RingFiller::Open(folder_.socket(), 8 * kMiB, Soon());
        ASSERT_TRUE(filler.ok()) << filler.status();
        const uint64_t now = server_->put_ring_bytes();
        for (uint64_t seen = max_used; seen < now && !max_used.compare_exchange_weak(seen, now);) {
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_LE(max_used, 3 * each);
  EXPECT_TRUE(RoomIsFree());
}

TEST_F(PutRingTest, HandedMemory_ReachesTheOfferWithItsParts) {
  Start();
  std::vector<HandedMemory> handed(2);
  handed[0].memfd = MakePool(4 * kMiB, OfferSeals());
  handed[0].bytes = 4 * kMiB;
  for (uint64_t i = 0; i < 2 * kMaxPartsPerFrame + 1; ++i) handed[0].parts.push_back({i * 512, 5, i * 64});
  handed[1].pool_id = "pool";
  handed[1].replica_id = "replica";
  handed[1].parts = {{2 * kMiB, kMiB, 3 * kMiB}};
  auto filler = RingFiller::Open(folder_.socket(), 8 * kMiB, Soon(), {}, handed);
  ASSERT_TRUE(filler.ok()) << filler.status();
  auto offer = server_->TakeOffer((*filler)->token());
  ASSERT_TRUE(offer.ok()) << offer.status();
  EXPECT_NE(offer->ring, nullptr);
  ASSERT_EQ(offer->handed.size(), 2u);
  EXPECT_EQ(offer->handed[0].parts, handed[0].parts);
  EXPECT_EQ(offer->handed[0].bytes, 4 * kMiB);
  struct stat sent, received;
  ASSERT_EQ(fstat(handed[0].memfd.get(), &sent), 0);
  ASSERT_EQ(fstat(offer->handed[0].memfd.get(), &received), 0);
  EXPECT_EQ(sent.st_ino, received.st_ino);
  EXPECT_EQ(offer->handed[1].replica_id, "replica");
  EXPECT_EQ(offer->handed[1].parts, handed[1].parts);
}

TEST_F(PutRingTest, HandedMemoryThatCanChange_IsRefused) {
  Start();
  const int before = OpenDescriptors();
  for (const int seals : {0, OfferSeals() & ~F_SEAL_WRITE, OfferSeals() & ~F_SEAL_SHRINK,
                          OfferSeals() & ~F_SEAL_GROW, PoolSeals()}) {
    std::vector<HandedMemory> handed(1);
    handed[0].memfd = MakePool(kMiB, seals);
    handed[0].bytes = kMiB;
    handed[0].parts = {{0, kMiB, 0}};
    const absl::Status refused = RingFiller::Open(folder_.socket(), 8 * kMiB, Soon(), {}, handed).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << seals << refused;
    EXPECT_THAT(refused.message(), HasSubstr("F_SEAL_WRITE"));
  }
  EXPECT_TRUE(RoomIsFree());
  EXPECT_TRUE(testing::Eventually([&] { return OpenDescriptors() == before; }));
}

TEST_F(PutRingTest, HandOverThatBreaksTheRules_IsRefused) {
  Start();
  const UniqueFd memory = MakePool(2 * kMiB, OfferSeals());
  using Sent = std::vector<std::pair<Frame, int>>;
  const Frame whole = HandOverFrame{.bytes = 2 * kMiB};
  const Sent conversations[] = {
      {{PartsFrame{{{0, 1, 0}}}, -1}},
      {{whole, -1}},
      {{HandOverFrame{.bytes = 2 * kMiB + 1}, memory.get()}},
      {{HandOverFrame{.pool_id = "p", .replica_id = "r"}, memory.get()}},
      {{whole, memory.get()}, {PartsFrame{{{0, 1, 2 * kMiB}}}, -1}},
      {{whole, memory.get()}, {PartsFrame{{{0, ~uint64_t{0}, 1}}}, -1}},
      {{whole, memory.get()}, {PartsFrame{{{0, 1, ~uint64_t{0}}}}, -1}},
      {{whole, memory.get()}, {PartsFrame{}, -1}},  // any number of them would fit
      {{whole, memory.get()}, {ClaimFrame{"ticket"}, -1}},
      Sent(kMaxHandedMemories + 1, {whole, memory.get()}),
  };
  for (const Sent& conversation : conversations) {
    UniqueFd socket = RawGreet(folder_.socket());
    for (const auto& [frame, fd] : conversation) SendFrame(socket.get(), frame, fd);
    EXPECT_EQ(ErrorOf(ReceiveFrame(socket.get())), absl::StatusCode::kInvalidArgument)
        << FrameName(conversation.back().first) << ", after " << conversation.size();
  }
  UniqueFd many = RawGreet(folder_.socket());
  SendFrame(many.get(), whole, memory.get());
  const PartsFrame parts{std::vector<HandedPart>(kMaxPartsPerFrame, {0, 1, 0})};
  for (size_t sent = 0; sent <= kMaxHandedParts; sent += kMaxPartsPerFrame) {
    const std::string bytes = *EncodeFrame(parts);
    // As a client does that waits for room in the socket's buffer.
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t written = send(many.get(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (written < 0 && errno != EAGAIN) break;
      at += written > 0 ? static_cast<size_t>(written) : 0;
    }
  }
  EXPECT_EQ(ErrorOf(ReceiveFrame(many.get())), absl::StatusCode::kInvalidArgument);
}

TEST_F(PutRingTest, FrameBehindTheRing_EndsThePut) {
  Start();
  const RawRing raw = OpenRaw(8 * kMiB);
  auto ring = Take(raw.token);
  SendFrame(raw.socket.get(), StreamFrame{1});
  ring->Ask(0, 0, 4096);
  EXPECT_TRUE(absl::IsUnavailable(ring->Await(context_, 0, "a test").status()));
}

TEST_F(PutRingTest, ServerThatStops_LeavesNoRingBehind) {
  Start();
  auto filler = Open(8 * kMiB);
  auto ring = Take(filler->token());
  ring->Ask(0, 0, 4096);
  server_.reset();
  EXPECT_TRUE(absl::IsUnavailable(ring->Await(context_, 0, "a test").status()));
  ring->End();
}

}  // namespace
}  // namespace tensorcast::put_ring_test
