// One replica for several GPUs of a node, by a broadcaster that copies in this process and fails as it is
// told.
#include <atomic>
#include <functional>

#include "base/testing/eventually.h"
#include "core/engine/engine_fixture.h"
#include "core/ingest/advance.h"
#include "gmock/gmock.h"

namespace tensorcast::testing::fan_out_test {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kChunks = 12;

class CopyingBroadcaster final : public DeviceBroadcaster {
 public:
  // Asked before each broadcast, with how many there were.
  std::function<absl::Status(int)> before = [](int) { return absl::OkStatus(); };
  // The receiver, counted from 1, that gets wrong bytes.
  std::atomic<int> spoiled = 0;
  std::atomic<int> opened = 0;
  std::atomic<int> open = 0;
  std::atomic<int> broadcasts = 0;
  std::atomic<uint64_t> bytes = 0;

  void Use(DeviceRuntime* devices) { devices_ = devices; }
  bool available() const override { return devices_ != nullptr; }
  absl::StatusOr<std::unique_ptr<BroadcastGroup>> Open(std::span<const DevicePtr> allocations) override {
    ++opened;
    return std::make_unique<Group>(this, std::vector<DevicePtr>(allocations.begin(), allocations.end()));
  }
  absl::StatusOr<std::string> version() const override { return absl::UnavailableError("on one node"); }
  absl::StatusOr<std::unique_ptr<WideBroadcastGroup>> Reserve(const RequestContext&) override {
    return version().status();
  }

 private:
  class Group final : public BroadcastGroup {
   public:
    Group(CopyingBroadcaster* owner, std::vector<DevicePtr> allocations)
        : owner_(owner), allocations_(std::move(allocations)) {
      ++owner_->open;
    }
    ~Group() override { --owner_->open; }

    absl::Status Broadcast(std::span<const ByteRange> ranges) override {
      if (absl::Status status = owner_->before(owner_->broadcasts++); !status.ok()) return status;
      for (size_t i = 1; i < allocations_.size(); ++i) {
        auto stream = owner_->devices_->CreateStream(allocations_[i].device);
        if (!stream.ok()) return stream.status();
        for (const ByteRange& range : ranges) {
          // What is spoiled is shifted, within the range: what lies beyond may be being written.
          const uint64_t shift = static_cast<int>(i) == owner_->spoiled ? 256 : 0;
          absl::Status copied = (*stream)->CopyOnDevice(
              allocations_[i] + range.offset, allocations_[0] + (range.offset + shift), range.bytes - shift);
          if (!copied.ok()) return copied;
          owner_->bytes += range.bytes;
        }
        if (absl::Status done = (*stream)->Synchronize(); !done.ok()) return done;
      }
      return absl::OkStatus();
    }

   private:
    CopyingBroadcaster* const owner_;
    const std::vector<DevicePtr> allocations_;
  };

  DeviceRuntime* devices_ = nullptr;
};

class EngineFanOut : public EngineFixture {
 protected:
  EngineFanOut() { setup_.broadcaster = &broadcaster_; }
  ~EngineFanOut() override { EXPECT_EQ(broadcaster_.open, 0); }

  // gpu:0 takes the artifact from a source that this test holds, the others take it from there.
  void StartHeld(int others) {
    Start(setup_);
    broadcaster_.Use(devices_.get());
    pending_.push_back(Materialize(artifact_, kGpu, ProviderOf({held_})));
    held_->WaitForHeldFetches(1);
    for (int i = 1; i <= others; ++i) {
      providers_.push_back(GoodProvider(artifact_));
      contexts_.push_back(ContextFor());
      pending_.push_back(
          Materialize(artifact_, {LocationKind::kGpu, i}, providers_.back(), contexts_.back()));
    }
  }
  void AwaitGroup() {
    ASSERT_TRUE(Eventually([this] { return broadcaster_.open == 1; }));
  }
  void ExpectRight(PendingReplica& pending) {
    const auto lease = pending.Wait(ContextFor());
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_EQ(Read(**lease), artifact_.image) << (*lease)->location().ToString();
  }
  // Of a replica's transfer, by lane.
  static uint64_t BytesOver(std::string_view lane, const PendingReplica& pending) {
    uint64_t bytes = 0;
    const TransferReport report = *pending.report();
    for (const SourceReport& source : report.sources) bytes += source.source.lane == lane ? source.bytes : 0;
    return bytes;
  }

  const TestArtifact artifact_ = MakeChunkedArtifact(1, kChunks);
  const std::shared_ptr<SourceControl> held_ = MakeControl(artifact_.image, {.held = true});
  CopyingBroadcaster broadcaster_;
  std::vector<std::shared_ptr<ScriptedProvider>> providers_;  // of the others
  std::vector<RequestContext> contexts_;                      // likewise
  std::vector<std::unique_ptr<PendingReplica>> pending_;      // the first one's first
};

TEST_F(EngineFanOut, DevicesOfOneNode_ShareBroadcastFromFillingReplica) {
  StartHeld(3);
  AwaitGroup();
  held_->Release();
  for (const auto& pending : pending_) ExpectRight(*pending);
  EXPECT_EQ(held_->total_fetches(), static_cast<int>(kChunks));
  EXPECT_EQ(broadcaster_.opened, 1);
  int members = 0;
  for (size_t i = 1; i < pending_.size(); ++i) {
    const uint64_t broadcast = BytesOver(kNcclLane, *pending_[i]);
    if (broadcast > 0) ++members;  // else it came too late for the group
    EXPECT_EQ(broadcast + BytesOver(kDeviceLane, *pending_[i]), artifact_.image.size());
    EXPECT_EQ(pending_[i]->report()->verified_chunks, kChunks);
    EXPECT_EQ(providers_[i - 1]->calls(), 0);
  }
  EXPECT_GE(members, 2);
  EXPECT_EQ(broadcaster_.bytes, members * artifact_.image.size());
}

TEST_F(EngineFanOut, ReadyDeviceReplica_ServesSeveralDevicesOnce) {
  Start(setup_);
  broadcaster_.Use(devices_.get());
  (void)MustGet(artifact_, kGpu);
  for (int i = 1; i <= 2; ++i) pending_.push_back(Materialize(artifact_, {LocationKind::kGpu, i}, nullptr));
  for (const auto& pending : pending_) ExpectRight(*pending);
  EXPECT_LE(broadcaster_.opened, 1) << "unless one was through before the other came";
}

// A broadcast writes every chunk, also those that stay and that other ingests read already.
TEST_F(EngineFanOut, ReceiversThatAdvance_CopyWithoutBroadcast) {
  Start(setup_);
  broadcaster_.Use(devices_.get());
  const TestArtifact base = MakeChunkedArtifact(2, kChunks);
  MustGet(artifact_, kGpu);
  for (int i = 1; i <= 2; ++i) MustGet(base, {LocationKind::kGpu, i});
  WaitUntilIdle();
  for (int i = 1; i <= 2; ++i) {
    auto pending =
        engine_->Ingest(ContextFor(), {.manifest = artifact_.manifest,
                                       .location = {LocationKind::kGpu, i},
                                       .sources = GoodProvider(artifact_),
                                       .advance = std::make_shared<Advance>(base.manifest->id(), true)});
    ASSERT_TRUE(pending.ok()) << pending.status();
    pending_.push_back(*std::move(pending));
  }
  for (const auto& pending : pending_) ExpectRight(*pending);
  EXPECT_EQ(broadcaster_.opened, 0);
}

TEST_F(EngineFanOut, SingleReceiver_CopiesWithoutBroadcast) {
  StartHeld(1);
  held_->Release();
  for (const auto& pending : pending_) ExpectRight(*pending);
  EXPECT_EQ(broadcaster_.opened, 0);
  EXPECT_EQ(BytesOver(kDeviceLane, *pending_[1]), artifact_.image.size());
}

TEST_F(EngineFanOut, FailedBroadcast_LeavesTheRestToCopies) {
  broadcaster_.before = [](int broadcasts) {
    return broadcasts < 2 ? absl::OkStatus() : absl::UnavailableError("the helper was killed");
  };
  StartHeld(3);
  AwaitGroup();
  held_->Release();
  for (const auto& pending : pending_) ExpectRight(*pending);
  EXPECT_EQ(held_->total_fetches(), static_cast<int>(kChunks));
  for (size_t i = 1; i < pending_.size(); ++i) {
    const TransferReport report = *pending_[i]->report();
    EXPECT_EQ(report.verified_chunks, kChunks) << "what arrived was kept";
    if (broadcaster_.broadcasts <= 2) continue;                // all came in them
    if (report.sources[0].source.lane != kNcclLane) continue;  // it came too late for the group
    EXPECT_GT(BytesOver(kDeviceLane, *pending_[i]), 0u);
    EXPECT_THAT(report.sources[0].status.message(), HasSubstr("helper was killed"));
  }
}

TEST_F(EngineFanOut, WrongBytesInABroadcast_AreCopiedAndDoNotBlameTheRoot) {
  broadcaster_.spoiled = 2;
  StartHeld(3);
  AwaitGroup();
  held_->Release();
  for (const auto& pending : pending_) ExpectRight(*pending);
  const auto spoiled = std::ranges::find_if(pending_, [](const auto& pending) {
    const TransferReport report = *pending->report();
    return std::ranges::any_of(report.sources,
                               [](const SourceReport& s) { return s.loss == SourceLoss::kBadDigest; });
  });
  ASSERT_NE(spoiled, pending_.end());
  EXPECT_EQ(BytesOver(kDeviceLane, **spoiled), artifact_.image.size());
  EXPECT_EQ(engine_->ListReplicas().size(), 4u) << "none was withdrawn";
}

TEST_F(EngineFanOut, CancelledReceiver_CostsOthersOnlyTheBroadcast) {
  StartHeld(3);
  AwaitGroup();
  contexts_[1].cancellation.Cancel();
  EXPECT_FALSE(pending_[2]->Wait(ContextFor()).ok());
  pending_.erase(pending_.begin() + 2);
  held_->Release();
  for (const auto& pending : pending_) ExpectRight(*pending);
  EXPECT_EQ(held_->total_fetches(), static_cast<int>(kChunks));
}

TEST_F(EngineFanOut, FailedRoot_LetsReceiversUseOtherSources) {
  StartHeld(2);
  AwaitGroup();
  pending_[0].reset();
  ExpectRight(*pending_[1]);
  ExpectRight(*pending_[2]);
}

TEST_F(EngineFanOut, BroadcasterWithoutRoot_LeavesReceiversToCopy) {
  Start(setup_);
  (void)MustGet(artifact_, kGpu);
  for (int i = 1; i <= 3; ++i) pending_.push_back(Materialize(artifact_, {LocationKind::kGpu, i}, nullptr));
  for (const auto& pending : pending_) ExpectRight(*pending);
  EXPECT_EQ(broadcaster_.opened, 0);
}

}  // namespace
}  // namespace tensorcast::testing::fan_out_test
