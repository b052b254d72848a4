// Replicas that become a later version under live leases: the calls of the processes that hold them.
// core/engine/live_advance_test.cc has the ingest alone.
#include "daemon/service/live_replicas.h"

#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/testing/eventually.h"
#include "core/handles/handle_client.h"
#include "daemon/service/versions_fixture.h"

namespace tensorcast::daemon::live_replicas_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class LiveReplicasTest : public VersionsTest {
 protected:
  // A process with a live lease, and the replica's memory mapped.
  struct Holder {
    std::string hold;
    std::unique_ptr<ClaimedReplica> claimed;
    ConstHostSpan image;

    std::vector<std::byte> bytes() const { return {image.begin(), image.end()}; }
  };

  void SetUp() override {
    VersionsTest::SetUp();
    // As a daemon does, so that a GPU can read changed values from the pool.
    const absl::Status locked = devices->RegisterHost(pool->base(), pool->bytes(), HostAccess::kReadWrite);
    ASSERT_TRUE(locked.ok()) << locked;
    live.emplace(LiveReplicas::Options{.engine = engine.get(),
                                       .devices = devices.get(),
                                       .materializer = materializer.get(),
                                       .sessions = sessions.get(),
                                       .servings = servings.get(),
                                       .handle_socket = handles->path()});
  }
  // Version 0, of which this node has a replica, and version 1, which it can rebuild.
  void PutTwo() { std::tie(base, target) = PutTwoAndKeepFirst(); }

  std::unique_ptr<ClaimedReplica> Claim(const std::string& ticket) const {
    auto claimed = ClaimedReplica::Claim(handles->path(), ticket, context.deadline);
    EXPECT_TRUE(claimed.ok()) << claimed.status();
    return *std::move(claimed);
  }
  Holder Hold() { return Hold(base); }
  Holder Hold(const std::string& artifact_id) {
    const auto lease = engine->LeaseArtifact(artifact_id, {});
    EXPECT_TRUE(lease.ok()) << lease.status();
    v1::AttachLiveRequest request;
    request.set_replica_id((*lease)->replica_id());
    const auto attached = live->Attach(request);
    EXPECT_TRUE(attached.ok()) << attached.status();
    Holder holder{.hold = attached->hold(), .claimed = Claim(attached->ticket()), .image = {}};
    const auto image = holder.claimed->MapImage();
    EXPECT_TRUE(image.ok()) << image.status();
    holder.image = *image;
    return holder;
  }
  // The base, on gpu:0 alone. Returns the id of the replica.
  std::string MakeOnGpu() {
    const auto manifest = engine->FindManifest(base);
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    const auto pending = engine->Ingest(
        context, {.manifest = *manifest, .location = {LocationKind::kGpu, 0}, .sources = nullptr});
    EXPECT_TRUE(pending.ok()) << pending.status();
    const auto lease = (*pending)->Wait(context);
    EXPECT_TRUE(lease.ok()) << lease.status();
    Evict(base, LocationKind::kCpu);
    return (*lease)->replica_id();
  }
  Holder HoldOnGpu(const std::string& replica_id) {
    v1::AttachLiveRequest request;
    request.set_replica_id(replica_id);
    const auto attached = live->Attach(request);
    EXPECT_TRUE(attached.ok()) << attached.status();
    Holder holder{.hold = attached->hold(), .claimed = Claim(attached->ticket()), .image = {}};
    EXPECT_TRUE(holder.claimed->AnnounceOpening().ok());
    return holder;
  }
  absl::Status Prepare(const Holder& holder, const std::string& artifact_id) {
    v1::PrepareVersionRequest request;
    request.set_hold(holder.hold);
    request.set_artifact_id(artifact_id);
    return live->Prepare(context, request).status();
  }
  // As a client: takes the lease on what the replica has become, which is in the same memory.
  absl::Status Commit(Holder& holder, const std::string& artifact_id,
                      absl::Duration wait = absl::Seconds(20)) {
    v1::CommitVersionRequest request;
    request.set_hold(holder.hold);
    request.set_artifact_id(artifact_id);
    *request.mutable_wait() = rpc::ToProto(wait);
    TC_ASSIGN_OR_RETURN(const v1::CommitVersionResponse committed, live->Commit(context, request));
    EXPECT_EQ(committed.replica().artifact_id(), artifact_id);
    TC_RETURN_IF_ERROR(holder.claimed->TakeOver(Claim(committed.ticket())));
    holder.hold = committed.hold();
    return absl::OkStatus();
  }
  std::future<absl::Status> StartCommit(Holder& holder, const std::string& artifact_id) {
    return std::async(std::launch::async,
                      [this, &holder, artifact_id] { return Commit(holder, artifact_id); });
  }
  // Fails to commit alone, so that a later wait is known to be for the other holders.
  void ExpectOthersMissing(Holder& holder, const std::string& artifact_id) {
    ASSERT_TRUE(Prepare(holder, artifact_id).ok());
    const absl::Status early = Commit(holder, artifact_id, absl::Milliseconds(20));
    EXPECT_EQ(early.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(early.message()),
                AllOf(HasSubstr(absl::StrCat("process ", getpid(), " did not commit")),
                      HasSubstr("nothing was written")));
  }

  std::optional<LiveReplicas> live;
  std::string base;
  std::string target;
};

TEST_F(LiveReplicasTest, TwoHolders_AreRewrittenOnceBothCommit) {
  PutTwo();
  Holder one = Hold();
  Holder other = Hold();
  ExpectOthersMissing(one, target);
  EXPECT_TRUE(one.bytes() == MakeVersion(0).image) << "the other holder may read";
  ExpectOthersMissing(other, target);
  EXPECT_TRUE(one.bytes() == MakeVersion(0).image);
  std::future<absl::Status> first = StartCommit(one, target);
  EXPECT_EQ(Commit(other, target), absl::OkStatus());
  EXPECT_EQ(first.get(), absl::OkStatus());
  EXPECT_TRUE(one.bytes() == MakeVersion(1).image);
  EXPECT_TRUE(other.bytes() == MakeVersion(1).image);
  EXPECT_EQ(CountHere(base), 0u);
  EXPECT_EQ(CountHere(target), 1u);
  EXPECT_EQ(Commit(one, target), absl::OkStatus()) << "it is that version already";
}

TEST_F(LiveReplicasTest, HolderThatEndsWhileOtherWaits_CountsNoMore) {
  PutTwo();
  Holder one = Hold();
  Holder other = Hold();
  ExpectOthersMissing(one, target);
  std::future<absl::Status> first = StartCommit(one, target);
  other.claimed.reset();
  EXPECT_EQ(first.get(), absl::OkStatus());
  EXPECT_TRUE(one.bytes() == MakeVersion(1).image);
}

TEST_F(LiveReplicasTest, FailedRebuild_LeavesEarlierVersionReadable) {
  PutTwo();
  const std::vector<v1::Difference> differences =
      store.With([&](FakeGlobalStore& it) { return std::exchange(it.differences[target], {}); });
  std::filesystem::remove(folder + "/models/v1.safetensors");
  Holder one = Hold();
  EXPECT_FALSE(Commit(one, target).ok()) << "the version has no source";
  EXPECT_TRUE(one.bytes() == MakeVersion(0).image);
  EXPECT_EQ(CountHere(base), 1u);
  store.With([&](FakeGlobalStore& it) { it.differences[target] = differences; });
  EXPECT_EQ(Commit(one, target), absl::OkStatus()) << "a commit can be repeated";
  EXPECT_TRUE(one.bytes() == MakeVersion(1).image);
}

TEST_F(LiveReplicasTest, OtherVersionPrepared_TakesPlaceOfStagedOne) {
  PutTwo();
  const std::string later = PutAndKeepDifference(2, base);
  Holder one = Hold();
  Holder other = Hold();
  ASSERT_EQ(Prepare(one, target), absl::OkStatus());
  ASSERT_EQ(Prepare(other, later), absl::OkStatus());
  std::future<absl::Status> first = StartCommit(one, later);
  EXPECT_EQ(Commit(other, later), absl::OkStatus());
  EXPECT_EQ(first.get(), absl::OkStatus());
  EXPECT_TRUE(one.bytes() == MakeVersion(2).image);
  EXPECT_EQ(CountHere(target), 0u);
}

TEST_F(LiveReplicasTest, HolderInCommit_KeepsOthersFromOtherVersions) {
  base = PutVersion(WriteVersion(0), "none")->artifact_id();
  target = PutVersion(WriteVersion(1), "none")->artifact_id();
  const std::string later = PutVersion(WriteVersion(2), "none")->artifact_id();
  Holder one = Hold();
  Holder other = Hold();
  ExpectOthersMissing(one, target);
  // Until it has entered, a preparation of another version takes the place of its own.
  std::future<absl::Status> first = std::async(std::launch::async, [&] {
    absl::Status committed;
    do {
      committed = Commit(one, target);
    } while (absl::IsAborted(committed));
    return committed;
  });
  absl::Status refused;
  EXPECT_TRUE(testing::Eventually([&] {
    // Joins the preparation of the first holder, which can enter once this returns.
    if (!Prepare(other, target).ok()) return false;
    refused = Prepare(other, later);
    return !refused.ok() && !absl::IsAborted(refused);
  }));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(target));
  EXPECT_EQ(Commit(other, target), absl::OkStatus());
  EXPECT_EQ(first.get(), absl::OkStatus());
}

TEST_F(LiveReplicasTest, LastHolderThatEnds_FreesStagedVersion) {
  PutTwo();
  const uint64_t before = pool->stats().used_bytes;
  Holder one = Hold();
  ASSERT_EQ(Prepare(one, target), absl::OkStatus());
  EXPECT_GT(pool->stats().used_bytes, before) << "the changed values are staged";
  one.claimed.reset();
  EXPECT_TRUE(testing::Eventually([&] { return pool->stats().used_bytes == before; }));
  const absl::Status late = Prepare(one, target);
  EXPECT_EQ(late.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(late.message()), HasSubstr("get the weights again with live=True"));
}

TEST_F(LiveReplicasTest, VersionThatIsGivenUp_EndsRequestThatJoinedIt) {
  PutTwo();
  Holder one = Hold();
  ASSERT_EQ(Prepare(one, target), absl::OkStatus());
  std::string bytes;
  store.With([&](FakeGlobalStore& it) { bytes = it.manifests[target]; });
  const auto manifest = Manifest::Decode(bytes);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const auto joined = engine->Ingest(context, {.manifest = *manifest, .location = {}, .sources = nullptr});
  ASSERT_TRUE(joined.ok()) << joined.status();
  ASSERT_TRUE((*joined)->shared());
  one.claimed.reset();
  const absl::Status ended = (*joined)->Wait(context).status();
  EXPECT_EQ(ended.code(), absl::StatusCode::kAborted) << ended;
  EXPECT_THAT(std::string(ended.message()), HasSubstr("get the version again"));
}

TEST_F(LiveReplicasTest, VersionOfThisNode_IsWrittenFromItsOtherReplica) {
  base = PutVersion(WriteVersion(0), "none")->artifact_id();
  target = PutVersion(WriteVersion(1), "none")->artifact_id();
  const auto reader = engine->LeaseArtifact(target, {});
  ASSERT_TRUE(reader.ok()) << reader.status();
  Holder one = Hold();
  EXPECT_EQ(Commit(one, target), absl::OkStatus());
  EXPECT_TRUE(one.bytes() == MakeVersion(1).image);
  const auto now = engine->LeaseArtifact(target, {});
  ASSERT_TRUE(now.ok()) << now.status();
  EXPECT_NE((*now)->replica_id(), (*reader)->replica_id()) << "that one goes with its reader";
}

TEST_F(LiveReplicasTest, VersionThatOthersHoldLive_IsRefused) {
  base = PutVersion(WriteVersion(0), "none")->artifact_id();
  target = PutVersion(WriteVersion(1), "none")->artifact_id();
  const Holder one = Hold();
  std::optional<Holder> other = Hold(target);
  const absl::Status refused = Prepare(one, target);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("get that version with live=True to share the replica"));
  other.reset();
  EXPECT_TRUE(testing::Eventually([&] { return Prepare(one, target).ok(); }));
}

TEST_F(LiveReplicasTest, StoppingDaemon_EndsWaitingCommitUnwritten) {
  PutTwo();
  Holder one = Hold();
  const Holder other = Hold();
  ExpectOthersMissing(one, target);
  std::future<absl::Status> first = StartCommit(one, target);
  live->Stop();
  const absl::Status ended = first.get();
  EXPECT_EQ(ended.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(one.bytes() == MakeVersion(0).image);
  EXPECT_EQ(Prepare(other, target).code(), absl::StatusCode::kUnavailable);
}

TEST_F(LiveReplicasTest, ReplicaOnDisk_IsRefusedWithRemedy) {
  const std::string replica_id = MakeReplica({LocationKind::kDisk, 0});
  v1::AttachLiveRequest request;
  request.set_replica_id(replica_id);
  const absl::Status refused = live->Attach(request).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(replica_id), HasSubstr("on disk"),
                                                    HasSubstr("get the artifact at cpu or gpu:N")));
}

// The test's process exported the memory itself, so it cannot open it. It tells the daemon that it has.
TEST_F(LiveReplicasTest, ReplicaOnGpu_IsRewrittenInItsAllocation) {
  const Location gpu{LocationKind::kGpu, 0};
  PutTwo();
  const auto look = [&](const std::string& artifact_id, int version) -> DevicePtr {
    const auto lease = engine->LeaseArtifact(artifact_id, gpu);
    EXPECT_TRUE(lease.ok()) << lease.status();
    if (!lease.ok()) return {};
    std::vector<std::byte> bytes(artifact.image.size());
    const auto stream = devices->CreateStream(gpu.device);
    EXPECT_TRUE(stream.ok()) << stream.status();
    EXPECT_TRUE((*stream)->CopyToHost(bytes.data(), (*lease)->memory().device, bytes.size()).ok());
    EXPECT_TRUE((*stream)->Synchronize().ok());
    EXPECT_TRUE(bytes == MakeVersion(version).image) << version;
    return (*lease)->memory().device;
  };
  const std::string replica_id = MakeOnGpu();
  const DevicePtr image = look(base, 0);
  Holder holder = HoldOnGpu(replica_id);
  EXPECT_EQ(Commit(holder, target), absl::OkStatus());
  EXPECT_EQ(look(target, 1), image);
  EXPECT_EQ(CountHere(base), 0u);
  // Only its new lease is waited for.
  const std::string later = PutVersion(WriteVersion(2), "none")->artifact_id();
  EXPECT_EQ(Commit(holder, later), absl::OkStatus());
  EXPECT_EQ(look(later, 2), image);
  EXPECT_EQ(holder.claimed->artifact_id(), later);
}

TEST_F(LiveReplicasTest, GpuThatFailsToRewrite_TellsAllHolders) {
  PutTwo();
  const std::string replica_id = MakeOnGpu();
  Holder one = HoldOnGpu(replica_id);
  Holder two = HoldOnGpu(replica_id);
  ASSERT_TRUE(Prepare(one, target).ok());
  device_faults->fail_copies = 1;
  auto other = StartCommit(two, target);
  EXPECT_EQ(Commit(one, target).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(other.get().code(), absl::StatusCode::kInternal);
  for (const Holder* const holder : {&one, &two}) {
    EXPECT_TRUE(testing::Eventually([&] { return !holder->claimed->CheckIntact().ok(); }));
    EXPECT_THAT(std::string(holder->claimed->CheckIntact().message()), HasSubstr("the replica is lost"));
  }
  EXPECT_EQ(CountHere(base) + CountHere(target), 0u);
}

}  // namespace
}  // namespace tensorcast::daemon::live_replicas_test
