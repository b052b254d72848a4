// A node's part in broadcasts between nodes, by a broadcaster and a meeting that do as they are told: what
// other nodes send comes from the artifact's image.
#include "core/broadcast/wide_broadcasts.h"

#include <atomic>

#include "absl/strings/str_cat.h"
#include "base/testing/eventually.h"
#include "core/broadcast/unsent_chunks.h"
#include "core/engine/engine_fixture.h"
#include "gmock/gmock.h"

namespace tensorcast::testing::wide_broadcasts_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kChunks = 12;

class WideBroadcaster final : public DeviceBroadcaster {
 public:
  // What the root elsewhere has, and how many of its chunks come before its node is lost.
  const TestArtifact* artifact = nullptr;
  uint32_t lost_after = kChunks;
  std::atomic<int> open = 0;
  std::atomic<int> ended = 0;  // in good order
  BroadcastWorld world;        // of the group that was joined last

  void Use(DeviceRuntime* devices) { devices_ = devices; }
  bool available() const override { return false; }
  absl::StatusOr<std::unique_ptr<BroadcastGroup>> Open(std::span<const DevicePtr>) override {
    return absl::UnavailableError("between nodes only");
  }
  absl::StatusOr<std::string> version() const override { return "2.28.9"; }
  absl::StatusOr<std::unique_ptr<WideBroadcastGroup>> Reserve(const RequestContext&) override {
    return std::make_unique<Group>(this);
  }

 private:
  class Group final : public WideBroadcastGroup {
   public:
    explicit Group(WideBroadcaster* owner) : owner_(owner) { ++owner_->open; }
    ~Group() override { --owner_->open; }

    absl::StatusOr<std::string> MakeId() override { return "made"; }
    absl::Status Join(std::span<const DevicePtr> allocations, const BroadcastWorld& world) override {
      allocations_.assign(allocations.begin(), allocations.end());
      owner_->world = world;
      return absl::OkStatus();
    }
    absl::Status Broadcast(std::span<const ByteRange> ranges) override {
      if (ranges.empty()) ++owner_->ended;
      const auto root =
          std::ranges::find(owner_->world.ranks, owner_->world.root) - owner_->world.ranks.begin();
      for (const DevicePtr& to : allocations_) {
        for (const ByteRange& range : ranges) {
          if (to == allocations_[root]) continue;
          const auto stream = owner_->devices_->CreateStream(to.device).value();
          absl::Status copied =
              stream->CopyOnDevice(to + range.offset, allocations_[root] + range.offset, range.bytes);
          if (copied.ok()) copied = stream->Synchronize();
          if (!copied.ok()) return copied;
        }
      }
      return absl::OkStatus();
    }
    absl::StatusOr<std::vector<ByteRange>> Receive() override {
      if (next_ == owner_->lost_after && next_ < kChunks) return absl::UnavailableError("a rank is lost");
      if (next_ == kChunks) {
        ++owner_->ended;
        return std::vector<ByteRange>();
      }
      const ByteRange range = owner_->artifact->layout.chunk(next_++);
      for (const DevicePtr& to : allocations_) {
        const auto stream = owner_->devices_->CreateStream(to.device).value();
        absl::Status copied = stream->CopyToDevice(
            to + range.offset, owner_->artifact->image.data() + range.offset, range.bytes);
        if (copied.ok()) copied = stream->Synchronize();
        if (!copied.ok()) return copied;
      }
      return std::vector<ByteRange>{range};
    }

   private:
    WideBroadcaster* const owner_;
    std::vector<DevicePtr> allocations_;
    uint32_t next_ = 0;
  };

  DeviceRuntime* devices_ = nullptr;
};

class ScriptedMeeting final : public BroadcastMeeting {
 public:
  absl::StatusOr<WideRoot> answer = WideRoot{.communicator_id = "theirs", .rank = 0, .node_name = "node-r"};

  absl::StatusOr<WideRoot> Meet(const RequestContext&, const WideGroupPlan&,
                                const std::optional<WideRoot>& root) override {
    ++met;
    if (answer.ok() && root.has_value()) return *root;
    return answer;
  }
  void GiveUp(const WideGroupPlan&, const absl::Status&) override { ++given_up; }

  std::atomic<int> met = 0;
  std::atomic<int> given_up = 0;
};

class EngineWideBroadcasts : public EngineFixture {
 protected:
  EngineWideBroadcasts() {
    setup_.broadcaster = &broadcaster_;
    broadcaster_.artifact = &artifact_;
  }
  ~EngineWideBroadcasts() override { EXPECT_EQ(broadcaster_.open, 0); }

  // gpu:0 and gpu:1 are ranks 2 and 3 of four.
  void Begin(bool has_root = false, absl::Duration forming = absl::Seconds(60)) {
    broadcaster_.Use(devices_.get());
    engine_->BeginBroadcast({.group_id = "g",
                             .artifact_id = artifact_.manifest->id(),
                             .world_size = 4,
                             .ranks = {{2, {LocationKind::kGpu, 0}}, {3, {LocationKind::kGpu, 1}}},
                             .has_root = has_root,
                             .forms_until = SteadyNow() + forming,
                             .meeting = meeting_});
  }
  void Want(int gpu) {
    providers_.push_back(GoodProvider(artifact_));
    pending_.push_back(Materialize(artifact_, {LocationKind::kGpu, gpu}, providers_.back()));
  }
  void ExpectRight() {
    for (const auto& pending : pending_) {
      const auto lease = pending->Wait(ContextFor());
      ASSERT_TRUE(lease.ok()) << lease.status();
      EXPECT_EQ(Read(**lease), artifact_.image) << (*lease)->location().ToString();
      EXPECT_EQ(pending->report()->verified_chunks, kChunks);
    }
  }
  uint64_t Broadcast(size_t index) {
    const TransferReport report = *pending_[index]->report();
    uint64_t bytes = 0;
    for (const SourceReport& source : report.sources) {
      bytes += source.source.lane == kNcclLane ? source.bytes : 0;
    }
    return bytes;
  }

  const TestArtifact artifact_ = MakeChunkedArtifact(1, kChunks);
  WideBroadcaster broadcaster_;
  const std::shared_ptr<ScriptedMeeting> meeting_ = std::make_shared<ScriptedMeeting>();
  std::vector<std::shared_ptr<ScriptedProvider>> providers_;
  std::vector<std::unique_ptr<PendingReplica>> pending_;
};

TEST_F(EngineWideBroadcasts, WideBroadcast_ReachesAllDevicesOfNode) {
  Start(setup_);
  Begin();
  Want(0);
  Want(1);
  ExpectRight();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(Broadcast(i), artifact_.image.size());
    EXPECT_EQ(providers_[i]->calls(), 0);
  }
  EXPECT_EQ(pending_[0]->report()->sources[0].source.name, "node-r");
  EXPECT_EQ(broadcaster_.world.id, "theirs");
  EXPECT_THAT(broadcaster_.world.ranks, ElementsAre(2, 3));
  EXPECT_EQ(meeting_->given_up, 0);
}

TEST_F(EngineWideBroadcasts, WideBroadcast_GathersMoreDevicesThanRunningIngests) {
  setup_.max_concurrent_ingests = 1;
  Start(setup_);
  Begin();
  Want(0);
  Want(1);
  ExpectRight();
  EXPECT_EQ(Broadcast(0) + Broadcast(1), 2 * artifact_.image.size());
}

TEST_F(EngineWideBroadcasts, FirstReceiverOnRootNode_BecomesRootAndPulls) {
  Start(setup_);
  Begin(/*has_root=*/true);
  Want(1);
  Want(0);
  ExpectRight();
  EXPECT_EQ(Broadcast(0), 0u);
  EXPECT_GT(providers_[0]->calls(), 0);
  EXPECT_EQ(Broadcast(1), artifact_.image.size());
  EXPECT_EQ(broadcaster_.world.root, 3u);
  EXPECT_EQ(broadcaster_.ended, 1) << "the others are told";
}

TEST_F(EngineWideBroadcasts, ReadyReplicaOnRootNode_BecomesRoot) {
  Start(setup_);
  (void)MustGet(artifact_, kGpu);
  Begin(/*has_root=*/true);
  Want(1);
  ExpectRight();
  EXPECT_EQ(Broadcast(0), artifact_.image.size());
  EXPECT_EQ(broadcaster_.world.root, 2u);
}

TEST_F(EngineWideBroadcasts, LostGroup_LeavesMissingChunksToPulls) {
  Start(setup_);
  broadcaster_.lost_after = kChunks / 2;
  Begin();
  Want(0);
  Want(1);
  ExpectRight();
  EXPECT_EQ(meeting_->given_up, 1);
  for (size_t i = 0; i < 2; ++i) EXPECT_LE(Broadcast(i), artifact_.image.size() / 2);
}

TEST_F(EngineWideBroadcasts, FailedMeeting_LeavesAllChunksToPulls) {
  Start(setup_);
  meeting_->answer = absl::AbortedError("node c did not come");
  Begin();
  Want(0);
  Want(1);
  ExpectRight();
  EXPECT_EQ(Broadcast(0) + Broadcast(1), 0u);
  EXPECT_EQ(meeting_->met, 1);
}

TEST_F(EngineWideBroadcasts, IncompleteGroup_IsGivenUpAtItsDeadline) {
  Start(setup_);
  Begin(/*has_root=*/false, absl::Milliseconds(50));
  Want(0);
  ExpectRight();
  EXPECT_EQ(Broadcast(0), 0u);
  EXPECT_TRUE(Eventually([this] { return meeting_->given_up == 1; }));
  EXPECT_EQ(meeting_->met, 0);
}

TEST(ChunksOf, ChunksOf_AcceptsOnlyWholeChunksOfImage) {
  const ImageLayout layout = MakeChunkedArtifact(1, 3).layout;
  const uint64_t chunk = layout.chunk_bytes;
  EXPECT_THAT(ChunksOf(layout, RangesOf(layout, {0, 1, 2})).value(), ElementsAre(0, 1, 2));
  EXPECT_THAT(ChunksOf(layout, {{2 * chunk, layout.image_bytes - 2 * chunk}, {0, chunk}}).value(),
              ElementsAre(2, 0));
  for (const ByteRange& wrong : {ByteRange{1, chunk}, ByteRange{0, chunk - 1}, ByteRange{0, 0},
                                 ByteRange{0, 4 * chunk}, ByteRange{4 * chunk, chunk}}) {
    EXPECT_FALSE(ChunksOf(layout, {wrong}).ok()) << wrong.offset << " " << wrong.bytes;
  }
}

}  // namespace
}  // namespace tensorcast::testing::wide_broadcasts_test
